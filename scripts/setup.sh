#!/bin/sh
# Installs what building, testing and the demonstration need: Debian packages on this machine, and
# a guest kernel below target/lab/ (unpacked there; the machine's own kernel is left alone).
# Quick and silent when nothing is missing. Without root it prints what to install and exits 2.
set -eu
cd "$(dirname "$0")/.."
lab=${EVENKEEL_LAB_DIR:-target/lab}

# Lines "FILE-OR-PROGRAM PACKAGE": the package is wanted when the first word cannot be found.
needs='gcc gcc
make make
pkg-config pkg-config
/usr/include/stdlib.h libc6-dev
qemu-system-x86_64 qemu-system-x86
qemu-img qemu-utils
qemu-storage-daemon qemu-utils
busybox busybox-static
mkfs.ext4 e2fsprogs
debugfs e2fsprogs
fio fio
depmod kmod
ldd libc-bin
dpkg-deb dpkg'

PATH=$PATH:/usr/sbin:/sbin
missing=$(echo "$needs" | while read -r thing package; do
    case $thing in
        /*) [ -e "$thing" ] || echo "$package" ;;
        *) command -v "$thing" >/dev/null 2>&1 || echo "$package" ;;
    esac
done | sort -u | tr '\n' ' ')

# A dynamic busybox would need libraries that the guests do not have.
if command -v busybox >/dev/null 2>&1 && ldd "$(command -v busybox)" >/dev/null 2>&1; then
    missing="$missing busybox-static "
fi

update_done=
update_lists() {
    [ -z "$update_done" ] || return 0
    update_done=yes
    echo "setup: refreshing the package lists" >&2
    apt-get update -qq
}

if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "setup: packages are missing; please run as root:" >&2
        echo "    apt-get update && apt-get install -y --no-install-recommends $missing" >&2
        exit 2
    fi
    export DEBIAN_FRONTEND=noninteractive
    echo "setup: installing $missing" >&2
    # Lists that are absent or older than the mirror's state make the first try fail: refresh, retry.
    # shellcheck disable=SC2086
    apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends $missing >/dev/null 2>&1 || {
        update_lists
        apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends $missing >/dev/null
    }
fi

if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: cargo is missing; install Rust (https://rustup.rs), then run this again" >&2
    exit 2
fi

# The guests' kernel. Complete only when the stamp names it, so a broken download is repeated.
if ! { [ -s "$lab/kernel/version" ] && [ -s "$lab/kernel/vmlinuz" ] &&
    [ -d "$lab/kernel/lib/modules/$(cat "$lab/kernel/version")/kernel/drivers/mmc" ]; }; then
    kernel_package() {
        apt-cache depends linux-image-amd64 2>/dev/null |
            sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1
    }
    package=$(kernel_package)
    if [ -z "$package" ]; then
        if [ "$(id -u)" != 0 ]; then
            echo "setup: the package lists are empty; please run as root: apt-get update" >&2
            exit 2
        fi
        update_lists
        package=$(kernel_package)
    fi
    [ -n "$package" ] || { echo "setup: no linux-image-amd64 in the package lists" >&2; exit 1; }
    echo "setup: fetching $package for the guests" >&2
    rm -rf "$lab/kernel" "$lab/kernel.part"
    mkdir -p "$lab/kernel.part"
    (
        cd "$lab/kernel.part"
        apt-get download -qq "$package" 2>/dev/null || {
            [ "$(id -u)" = 0 ] || {
                echo "setup: cannot fetch $package; please run as root: apt-get update" >&2
                exit 2
            }
            apt-get update -qq && apt-get download -qq "$package"
        }
        version=${package#linux-image-}
        modules=lib/modules/$version
        # Debian moved /lib/modules below /usr in later releases; take whichever is there.
        dpkg-deb --fsys-tarfile "$package"_*.deb | tar -x --wildcards \
            './boot/vmlinuz-*' './*lib/modules/*/modules.*' './*lib/modules/*/kernel/block' \
            './*lib/modules/*/kernel/fs/ext4' './*lib/modules/*/kernel/fs/jbd2' \
            './*lib/modules/*/kernel/fs/mbcache.ko*' './*lib/modules/*/kernel/lib' \
            './*lib/modules/*/kernel/crypto' './*lib/modules/*/kernel/arch/x86/crypto' \
            './*lib/modules/*/kernel/drivers/virtio' './*lib/modules/*/kernel/drivers/block' \
            './*lib/modules/*/kernel/drivers/char/virtio_console.ko*' \
            './*lib/modules/*/kernel/drivers/mmc/core' \
            './*lib/modules/*/kernel/drivers/mmc/host/cqhci.ko*' \
            './*lib/modules/*/kernel/drivers/mmc/host/sdhci.ko*' \
            './*lib/modules/*/kernel/drivers/mmc/host/sdhci-pci.ko*'
        if [ ! -d "$modules" ]; then
            mkdir -p lib/modules && mv "usr/$modules" "$modules"
        fi
        mv boot/vmlinuz-* vmlinuz
        rm -rf -- *.deb boot usr
        depmod -b . "$version"
        echo "$version" >version
    )
    mv "$lab/kernel.part" "$lab/kernel"
fi
