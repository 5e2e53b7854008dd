//! What we offer: virtio features, vhost-user protocol features, the configuration space.

use evenkeel_engine::{Geometry, RANGE_SECTORS_MAX};
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH,
    VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY,
    VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use crate::command::SessionDisk;

/// Size of `struct virtio_blk_config` up to and including the write-zeroes fields.
pub(crate) const CONFIG_BYTES: usize = 60;

/// Where the guest turns the write cache on (1) and off (0): the only writable field.
pub(crate) const WRITEBACK_OFFSET: u32 = 32;

/// Returns the virtio features of a disk.
pub(crate) fn virtio_features(geometry: &Geometry) -> u64 {
    let always = [
        VIRTIO_F_VERSION_1,
        VIRTIO_RING_F_EVENT_IDX,
        VIRTIO_RING_F_INDIRECT_DESC,
        VIRTIO_BLK_F_SEG_MAX,
        VIRTIO_BLK_F_BLK_SIZE,
        VIRTIO_BLK_F_TOPOLOGY,
        VIRTIO_BLK_F_FLUSH,
        VIRTIO_BLK_F_CONFIG_WCE,
        VIRTIO_BLK_F_MQ,
    ];
    let sometimes = [
        (VIRTIO_BLK_F_RO, geometry.read_only),
        (VIRTIO_BLK_F_DISCARD, geometry.discard),
        (VIRTIO_BLK_F_WRITE_ZEROES, geometry.write_zeroes),
    ];
    let sometimes = sometimes.into_iter().filter_map(|(bit, is_on)| is_on.then_some(bit));
    let bits = always.into_iter().chain(sometimes).fold(0, |bits, bit| bits | 1 << bit);
    bits | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
}

/// Returns whether bit number `bit` is among `features`.
pub(crate) fn has(features: u64, bit: u32) -> bool {
    features >> bit & 1 != 0
}

/// Returns the protocol features that a session serves.
///
/// The backend's channel to the VMM is not among them: nothing here has anything to say on it yet.
pub(crate) fn protocol_features() -> VhostUserProtocolFeatures {
    VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
}

/// Returns the configuration space: `struct virtio_blk_config`, little endian.
///
/// | bytes  | field                       | here                                           |
/// |--------|-----------------------------|------------------------------------------------|
/// | 0..8   | `capacity`                  | sectors                                        |
/// | 12..16 | `seg_max`                   | segments of one request                        |
/// | 20..24 | `blk_size`                  | logical block in bytes                         |
/// | 24     | `physical_block_exp`        | logical blocks per 4 KiB, as a power of two    |
/// | 26..28 | `min_io_size`               | 4 KiB in logical blocks                        |
/// | 28..32 | `opt_io_size`               | 0: no wish                                     |
/// | 32     | `writeback`                 | 1 while the write cache is on                  |
/// | 34..36 | `num_queues`                | vrings                                         |
/// | 36..48 | discard                     | most sectors, most ranges (1), alignment       |
/// | 48..57 | write zeroes                | most sectors, most ranges (1), may unmap (1)   |
///
/// Source: VIRTIO 1.2, "Block Device", "Device configuration layout".
pub(crate) fn config_space(disk: &SessionDisk, writeback: bool) -> [u8; CONFIG_BYTES] {
    let Geometry { sectors, block_bytes, discard, write_zeroes, .. } = disk.geometry;
    let blocks_per_page = (PHYSICAL_BLOCK_BYTES / block_bytes.max(1)).max(1);
    let mut space = [0; CONFIG_BYTES];
    let mut put = |offset: usize, bytes: &[u8]| {
        space[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    put(0, &sectors.to_le_bytes());
    put(12, &disk.seg_max.to_le_bytes());
    put(20, &block_bytes.to_le_bytes());
    put(24, &[u8::try_from(blocks_per_page.ilog2()).expect("at most 12")]);
    put(26, &u16::try_from(blocks_per_page).expect("at most 4096").to_le_bytes());
    put(32, &[u8::from(writeback)]);
    put(34, &disk.max_vrings.to_le_bytes());
    if discard {
        put(36, &RANGE_SECTORS_MAX.to_le_bytes());
        put(40, &1_u32.to_le_bytes());
        put(44, &(PHYSICAL_BLOCK_BYTES / 512).to_le_bytes());
    }
    if write_zeroes {
        put(48, &RANGE_SECTORS_MAX.to_le_bytes());
        put(52, &1_u32.to_le_bytes());
        put(56, &[1]);
    }
    space
}

/// Returns `size` bytes of the configuration space from `offset` on; what lies behind its end
/// reads as zero, as VMMs ask for the structure that they know, which may be longer.
///
/// `None` if the range is empty or not inside the 4096 bytes that a message can name.
pub(crate) fn read_config(space: &[u8], offset: u32, size: u32) -> Option<Vec<u8>> {
    let (start, len) = (usize::try_from(offset).ok()?, usize::try_from(size).ok()?);
    let end = start.checked_add(len)?;
    if len == 0 || end > CONFIG_SPACE_MAX {
        return None;
    }
    Some((start..end).map(|at| space.get(at).copied().unwrap_or(0)).collect())
}

/// Returns what the guest wrote to `writeback`; `None` if it wrote anything else.
pub(crate) fn written_writeback(offset: u32, bytes: &[u8]) -> Option<bool> {
    match (offset, bytes) {
        (WRITEBACK_OFFSET, [0]) => Some(false),
        (WRITEBACK_OFFSET, [1]) => Some(true),
        _ => None,
    }
}

/// What the disks below like best, whatever the logical block: the page of the host's cache and
/// the block of its file systems.
const PHYSICAL_BLOCK_BYTES: u32 = 4096;

/// Source: vhost-user protocol specification, "Virtio device config space".
const CONFIG_SPACE_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::disk;

    #[test]
    fn every_field_of_the_configuration_space_is_where_virtio_has_it() {
        let (disk, _inbox) = disk();
        let space = config_space(&disk, true);
        let u16_at = |at| u16::from_le_bytes([space[at], space[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes(space[at..at + 4].try_into().unwrap());
        assert_eq!(u64::from_le_bytes(space[..8].try_into().unwrap()), disk.geometry.sectors);
        assert_eq!(u32_at(12), disk.seg_max);
        assert_eq!((u32_at(20), space[24], u16_at(26)), (512, 3, 8));
        assert_eq!((space[32], u16_at(34)), (1, disk.max_vrings));
        assert_eq!((u32_at(36), u32_at(40), u32_at(44)), (RANGE_SECTORS_MAX, 1, 8));
        assert_eq!((u32_at(48), u32_at(52), space[56]), (RANGE_SECTORS_MAX, 1, 1));
        assert_eq!(config_space(&disk, false)[32], 0);
    }

    #[test]
    fn optional_features_follow_the_geometry() {
        let (disk, _inbox) = disk();
        let all = virtio_features(&disk.geometry);
        let bare = Geometry { discard: false, write_zeroes: false, ..disk.geometry };
        let read_only = Geometry { read_only: true, ..bare };
        assert!(has(all, VIRTIO_BLK_F_DISCARD) && has(all, VIRTIO_BLK_F_WRITE_ZEROES));
        assert!(!has(all, VIRTIO_BLK_F_RO) && has(virtio_features(&read_only), VIRTIO_BLK_F_RO));
        assert!(!has(virtio_features(&bare), VIRTIO_BLK_F_DISCARD));
        assert!(has(all, VIRTIO_F_VERSION_1) && has(all, VIRTIO_RING_F_EVENT_IDX));
    }

    #[test]
    fn hostile_offsets_into_the_configuration_space_are_refused() {
        let space = [7; CONFIG_BYTES];
        assert_eq!(read_config(&space, 0, 0), None);
        assert_eq!(read_config(&space, 4095, 2), None);
        assert_eq!(read_config(&space, u32::MAX, u32::MAX), None);
        assert_eq!(read_config(&space, 59, 3), Some(vec![7, 0, 0]));
        assert_eq!(read_config(&space, 0, 4096).map(|bytes| bytes.len()), Some(4096));
    }

    #[test]
    fn only_the_write_cache_can_be_written() {
        assert_eq!(written_writeback(32, &[0]), Some(false));
        assert_eq!(written_writeback(32, &[1]), Some(true));
        assert_eq!(written_writeback(32, &[2]), None);
        assert_eq!(written_writeback(32, &[1, 0]), None);
        assert_eq!(written_writeback(0, &[0; 8]), None);
        assert_eq!(written_writeback(u32::MAX, &[]), None);
    }
}
