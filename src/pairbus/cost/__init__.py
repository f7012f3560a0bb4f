"""What operations cost: how they are counted, what they sum up to, and what that is in money.

Pure, and below everything else: the broker, the paired client and the syphon count by the same
`meter.py`, and so can be compared to the unit.
"""
