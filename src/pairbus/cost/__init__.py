"""What operations cost: the meter that counts them, price lists, and estimates.

Pure, and below everything else. The broker, the paired client and the syphon all count with
`meter.py`, so their counts can be compared exactly.
"""
