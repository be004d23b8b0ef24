"""`preflight rendezvous`: whether the nodes meet at the endpoint, before torchrun.

server is node 0, client any other node; node has what both do. judge decides, with the codes of codes.
"""
