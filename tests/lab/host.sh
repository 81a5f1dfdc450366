#!/bin/sh
# Turns the fresh net, UTS and mount namespaces that it is started in into one host, and stays as their holder.
# Environment: NAME, PORT (its end of the cable at the bridge), ADDRESS (with prefix length), GATEWAY,
# OWN_PIDS (1 or empty), DAEMON (shell text, or empty), KEPT (paths, one a line, which it shares all the same).
# Arguments: directories that this host shares with nobody.
set -eu
state=/run/lab/$NAME

echo "$NAME" > /proc/sys/kernel/hostname
cp /run/lab/hosts "$state/hosts"
mount --bind "$state/hosts" /etc/hosts
mount -t sysfs sysfs /sys  # else /sys/class/net shows the interfaces of another namespace
[ ! -d /run/lab/cgroup ] || mount --rbind /run/lab/cgroup /sys/fs/cgroup
kept() { # COMMAND: run it for each kept path and a place to put it
    echo "$KEPT" | while read -r path; do
        [ -z "$path" ] || sh -euc "$1" sh "$path" "$state/kept$(echo "$path" | tr / _)"
    done
}
kept 'mkdir -p "$2"; mount --bind "$1" "$2"'
for directory; do
    mount -t tmpfs -o "$(stat -c 'mode=%a,uid=%u,gid=%g' "$directory")" private "$directory"
done
kept 'mkdir -p "$1"; mount --bind "$2" "$1"; umount "$2"'

echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad  # an address is usable at once
ip -batch - <<END
link set lo up
link add eth0 type veth peer name $PORT netns 1
address add $ADDRESS dev eth0
link set eth0 up
route add default via $GATEWAY
END
nsenter --net=/proc/1/ns/net ip link set "$PORT" master br0 up

echo $$ > "$state/pid"
if [ -n "$OWN_PIDS" ]; then
    # bash, because the first process of a pid namespace has to reap what others leave
    exec unshare --pid --fork --kill-child bash -c "mount -t proc proc /proc; $DAEMON
        sleep infinity & wait"
fi
eval "$DAEMON"
exec sleep infinity
