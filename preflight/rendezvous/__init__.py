"""`preflight rendezvous`: whether the nodes meet at the endpoint, before torchrun.

server is node 0, client any other node; node has what both do, wire_format what they write into the store. judge
decides; codes has the codes.
"""
