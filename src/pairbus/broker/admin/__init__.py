"""The administration API of a namespace: ATOM and XML over HTTP, as the service has it.

`api` answers requests, `targets` reads their paths, `access` their tokens, `atom` and `entity_xml`
their XML, `rule_xml` that of rules and keys. `changes` changes entities and rules.
"""
