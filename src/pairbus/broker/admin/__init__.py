"""The administration API of a namespace: ATOM and XML over HTTP, as the service has it.

`app` answers requests, `targets` reads their paths, `access` their tokens, `atom` and `describe`
their XML, `rules` that of rules. What an entity is and does is the namespace's business.
"""
