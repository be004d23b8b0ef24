"""How long net.mesh waits, and what for."""

CONNECT_S = 3.5
"""For a connection. Linux sends a SYN again after 1 s and after 3 s, and says after 3 s that nobody has the address
(ARP)."""
HEART_S, SILENT_S = 0.5, 4.0
"""Between two heartbeats, and for the next one. A segment that is lost three times is there after 1.4 s (Linux: 0.2 s,
then twice as long each); a worker that is stopped is ended by preflight after 5 s."""
ALL_PAIRS = 64
"""Up to so many nodes every pair is tried: 63 rounds of a tenth of a second or two."""
LARGE = 1 << 20
"""Bytes of a large message."""
PROGRESS = 1 << 16
"""Of those: where so many arrive before it stalls, packets of full size pass. No MTU is larger (IPoIB: 65,520)."""
STALL_S, SHORT_STALL_S = 2.0, 0.3
"""For the next byte of data. Where a node's messages have stalled with `KNOWN` others, the short one does."""
KNOWN = 3
ANSWER_S = 1.5
"""For the receiver to say that data has stalled: three heartbeats."""
LARGE_S = 3.0
"""For 1 MiB that comes, but slowly: 0.35 MB/s, a hundredth of what Ethernet of 1 Gbit/s carries between many."""
MEET_S = 10.0
"""For the slowest worker to begin."""
REACHED_S = CONNECT_S + SILENT_S + 2.0
"""For all nodes to have made their connections, or not."""
AUTH_S = SILENT_S + 2.0
"""For a stranger's first words; longer than a partner whose words are lost on the way waits for the answer: that one
must see silence, not a connection that somebody closed."""
