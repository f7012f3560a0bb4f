"""Acts on what `route/` decides: clients and senders with the SDK's own surface, in two shells.

`blocking/` and `aio/` have files of the same names and differ in `await` and in who runs what is
due in the background; what needs neither lies here.
"""
