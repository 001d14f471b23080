# shellcheck shell=bash
# Hosts on this machine, for tests in bash, to be sourced after scratch.sh: network namespaces, which a
# bridge in one more joins. They need root and a kernel that lets us; else the test ends as skipped.
#
#   netns_open 10.77.0 4        hosts 0 to 3; host i has the address 10.77.0.(i+1) on eth0
#   ${netns[i]}                 host i's namespace, for ip netns exec
#   netns_cut 1, netns_mend 1   host 1's cable
#   netns_kill 1                ends all processes of host 1, at once
#   netns_close                 for the test's trap: ends all of all hosts, and takes them away
declare -a netns=()
netns_hub=mddhub$$

netns_open() { # network, hosts
    local i ns
    [ "$(id -u)" = 0 ] || skip "network namespaces need root"
    command -v ip >/dev/null || skip "no ip (iproute2)"
    ip netns add "$netns_hub" 2>/dev/null || skip "the kernel makes no network namespace here"
    ip -n "$netns_hub" link add br0 type bridge 2>/dev/null || skip "the kernel has no bridges"
    ip -n "$netns_hub" link set br0 up
    for ((i = 0; i < $2; i++)); do
        ns=mddh$i.$$
        ip netns add "$ns"
        netns[i]=$ns
        ip -n "$netns_hub" link add "v$i" type veth peer name eth0 netns "$ns" 2>/dev/null ||
            skip "the kernel has no veth"
        ip -n "$netns_hub" link set "v$i" master br0 up
        ip -n "$ns" addr add "$1.$((i + 1))/24" dev eth0
        ip -n "$ns" link set eth0 up
        ip -n "$ns" link set lo up
    done
}

netns_cut() {
    ip -n "$netns_hub" link set "v$1" down
}

netns_mend() {
    ip -n "$netns_hub" link set "v$1" up
}

netns_kill() {
    local pid
    for pid in $(ip netns pids "${netns[$1]}" 2>/dev/null); do
        kill -9 "$pid" 2>/dev/null || true
    done
}

netns_close() {
    local i
    for i in "${!netns[@]}"; do
        netns_kill "$i"
        ip netns del "${netns[i]}" 2>/dev/null || true
    done
    ip netns del "$netns_hub" 2>/dev/null || true
}
