"""Random capture settings for property tests: all that `Capture` allows, with numeric groups only."""

from hypothesis import strategies as st

from cni_agent.capture import Capture

ports = st.lists(st.integers(0, 65535), max_size=4).map(tuple)
own_port = st.integers(1, 65535)
ids = st.lists(st.integers(0, 2**32 - 2), min_size=1, max_size=3, unique=True).map(tuple)
addresses_v4 = st.ip_addresses(v=4).map(str)
addresses_v6 = st.ip_addresses(v=6).map(str)
cidr_v4 = st.builds("{}/{}".format, addresses_v4, st.integers(0, 32))
cidr_v6 = st.builds("{}/{}".format, addresses_v6, st.integers(0, 128))
cidrs = st.lists(cidr_v4 | cidr_v6, max_size=4).map(tuple)
interface = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,14}", fullmatch=True)
interfaces = st.lists(interface, max_size=3).map(tuple)
groups = st.lists(st.integers(0, 2**32 - 2).map(str), max_size=4).map(tuple)
wildcard = st.just("*")

captures = st.builds(
    Capture,
    outbound_port=own_port,
    inbound_port=own_port,
    tunnel_port=own_port,
    proxy_uids=ids,
    proxy_gids=ids,
    mode=st.sampled_from(["REDIRECT", "TPROXY"]),
    tproxy_mark=st.integers(1, 2**32 - 1),
    tproxy_table=st.integers(1, 252),
    include_inbound_ports=wildcard | ports,
    exclude_inbound_ports=ports,
    include_outbound_ports=ports,
    exclude_outbound_ports=ports,
    include_outbound_cidrs=wildcard | cidrs,
    exclude_outbound_cidrs=cidrs,
    reroute_interfaces=interfaces,
    exclude_interfaces=interfaces,
    owner_groups_include=wildcard | groups,
    owner_groups_exclude=groups,
    loopback_v4=st.sampled_from(["127.0.0.1/32", "127.0.0.1/8", "127.0.0.0/24"]),
    redirect_dns=st.booleans(),
    capture_all_dns=st.booleans(),
    resolvers_v4=st.lists(addresses_v4, max_size=2).map(tuple),
    resolvers_v6=st.lists(addresses_v6, max_size=2).map(tuple),
    drop_invalid=st.booleans(),
    ipv6=st.booleans(),
)
