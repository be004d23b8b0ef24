"""How long net.mesh waits for what, in seconds."""

CONNECT_S = 3.5
"""For a connection. Linux resends a SYN after 1 s and 3 s, and reports after 3 s that no host has the address (ARP)."""
HEART_S, SILENT_S = 0.5, 4.0
"""Between heartbeats, and for the next one. A segment lost three times arrives after 1.4 s (Linux waits 0.2 s, then
doubles); preflight ends a stopped worker after 5 s."""
ALL_PAIRS = 64
"""Up to this many nodes every pair is tried: 63 rounds of a tenth of a second or two."""
LARGE = 1 << 20
"""Bytes of a large message."""
PROGRESS = 1 << 16
"""If this many of them arrive before a stall, full-size packets pass: no MTU is larger (IPoIB: 65,520)."""
STALL_S, SHORT_STALL_S = 2.0, 0.3
"""For the next byte of data; the short one once a node's messages have stalled with `KNOWN` others."""
KNOWN = 3
ANSWER_S = 1.5
"""For the receiver to say that data has stalled: three heartbeats."""
LARGE_S = 3.0
"""For 1 MiB that arrives slowly: 0.35 MB/s, a hundredth of what 1 Gbit/s Ethernet carries between many."""
MEET_S = 10.0
"""For the slowest worker to start."""
REACHED_S = CONNECT_S + SILENT_S + 2.0
"""For all nodes to connect, or fail to."""
AUTH_S = SILENT_S + 2.0
"""For a stranger's first bytes; longer than a partner waits for an answer whose bytes are lost on the way: it must see
silence, not a closed connection."""
