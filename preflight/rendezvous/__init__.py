"""`preflight rendezvous`: whether the nodes meet at the endpoint, before torchrun.

server is node 0, client any other node, etcd any node where the job meets in etcd; node has what all do, wire_format
what nodes write into the store. judge decides; codes has the codes.
"""
