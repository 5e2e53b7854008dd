#!/bin/sh
# First process of a lab guest: devices, modules, then the agent that takes the host's commands.
/bin/busybox mkdir -p /proc /sys /dev /tmp /mnt /run /var /sbin /usr/bin /usr/sbin
/bin/busybox --install -s /bin
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
# Only a kernel that is in trouble should write to the console.
echo 4 >/proc/sys/kernel/printk
for module in crc32c_generic virtio_pci virtio_console virtio_blk ext4; do
    modprobe "$module" || echo "lab: module $module not loaded"
done
tries=0
while [ $tries -lt 200 ]; do
    for name in /sys/class/virtio-ports/*/name; do
        if [ -e "$name" ] && [ "$(cat "$name")" = org.evenkeel.lab.0 ]; then
            port=$(basename "$(dirname "$name")")
            [ -c "/dev/$port" ] && /bin/guest agent "/dev/$port"
            echo "lab: the agent has ended"
            poweroff -f
        fi
    done
    tries=$((tries + 1))
    usleep 50000
done
echo "lab: no command port found"
poweroff -f
