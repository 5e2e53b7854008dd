//! The parameters of the PCIe device and of the host above it.

use crate::spec::{Parameter, Preset};

/// What device, link and host are like. `docs/devices.md` says where the values come from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PcieParams {
    pub pcie_generation: u64,
    pub lanes: u64,
    pub payload_bytes: u64,
    pub packet_bytes: u64,
    pub read_request_bytes: u64,
    pub read_requests: u64,
    pub round_trip_ns: u64,
    pub dma_start_ns: u64,
    pub descriptor_bytes: u64,
    pub notice_ns: u64,
    pub command_ns: u64,
    pub program_ns: u64,
    pub update_ns: u64,
    pub interrupt_ns: u64,
    pub handler_ns: u64,
    pub build_ns: u64,
    pub doorbell_ns: u64,
    pub answer_ns: u64,
    pub wake_ns: u64,
    pub submit_ns: u64,
    pub page_ns: u64,
    pub max_block: u64,
}

impl PcieParams {
    /// Returns the time that bytes take on the link, packet overhead included.
    fn transfer(&self, bytes: u64) -> u64 {
        let packets = bytes.div_ceil(self.payload_bytes);
        // Bytes per microsecond and lane: 2.5 and 5 GT/s with 8 of 10 bits, 8 GT/s with 128 of 130.
        let lane = [250, 500, 985][usize::try_from(self.pcie_generation - 1).expect("1 to 3")];
        (bytes + packets * self.packet_bytes) * 1_000 / (lane * self.lanes)
    }

    /// Returns how long an engine takes to write into the host's memory: packets, one after the
    /// other, that nobody acknowledges.
    pub(crate) fn push_time(&self, bytes: u64) -> u64 {
        self.dma_start_ns + self.transfer(bytes)
    }

    /// Returns how long an engine takes to read from the host's memory: it asks for a few pieces
    /// at a time and waits for them, so every round costs a round trip.
    pub(crate) fn pull_time(&self, bytes: u64) -> u64 {
        let rounds = bytes.div_ceil(self.read_request_bytes * self.read_requests);
        self.dma_start_ns + rounds * self.round_trip_ns + self.transfer(bytes)
    }
}

macro_rules! parameters {
    ($($name:ident $min:literal ..= $max:literal $meaning:literal;)*) => {
        &[$(Parameter {
            name: stringify!($name),
            meaning: $meaning,
            min: $min,
            max: $max,
            field: |params| &mut params.$name,
        }),*]
    };
}

pub(crate) const PARAMETERS: &[Parameter<PcieParams>] = parameters! {
    pcie_generation 1 ..= 3 "generation of the link: 250, 500 or 985 MB/s per lane and direction";
    lanes 1 ..= 16 "lanes of the link";
    payload_bytes 64 ..= 4_096 "largest payload of a packet";
    packet_bytes 0 ..= 64 "what a packet costs beyond its payload";
    read_request_bytes 64 ..= 4_096 "largest piece that an engine asks the host's memory for";
    read_requests 1 ..= 64 "such requests that an engine has under way at a time";
    round_trip_ns 0 ..= 100_000 "from such a request to its first byte";
    dma_start_ns 0 ..= 100_000 "from programming an engine to its first packet";
    descriptor_bytes 8 ..= 256 "size of a descriptor";
    notice_ns 0 ..= 100_000 "until the device's processor sees that a register was written";
    command_ns 0 ..= 100_000 "the processor takes a descriptor apart and finds the data";
    program_ns 0 ..= 100_000 "the processor programs an engine";
    update_ns 0 ..= 100_000 "the processor checks a transfer and updates the descriptor";
    interrupt_ns 0 ..= 100_000 "from the device's interrupt to the driver";
    handler_ns 0 ..= 100_000 "the driver's work for each interrupt";
    build_ns 0 ..= 100_000 "the driver fills a descriptor";
    doorbell_ns 0 ..= 100_000 "the driver writes offset and size of a block into registers";
    answer_ns 0 ..= 100_000 "the driver completes a request towards the block layer";
    wake_ns 0 ..= 1_000_000 "from there until the thread runs in user space";
    submit_ns 0 ..= 1_000_000 "from the thread's system call to the driver";
    page_ns 0 ..= 100_000 "each further page of the same system call";
    max_block 1 ..= 1_024 "largest block of descriptors";
};

pub(crate) const PRESET: Preset<PcieParams> = Preset {
    name: "pcie-block",
    title: "PCIe storage prototype on a Xilinx ZC706 (simulator only)",
    params: PcieParams {
        pcie_generation: 2,
        lanes: 4,
        payload_bytes: 128,
        packet_bytes: 24,
        read_request_bytes: 512,
        read_requests: 4,
        round_trip_ns: 1_200,
        dma_start_ns: 300,
        descriptor_bytes: 32,
        notice_ns: 400,
        command_ns: 1_800,
        program_ns: 400,
        update_ns: 300,
        interrupt_ns: 2_000,
        handler_ns: 1_000,
        build_ns: 100,
        doorbell_ns: 300,
        answer_ns: 500,
        wake_ns: 5_000,
        submit_ns: 4_000,
        page_ns: 300,
        max_block: 32,
    },
    sources: &[
        "paper, section IV: four-lane PCIe Gen. 2; rates: PCI Express Base Specification 3.0",
        "paper, section IV",
        "PCI Express Base Specification 2.1: the value after reset, which every host takes",
        "PCI Express Base Specification 2.1: framing 2, sequence 2, header 16, link CRC 4",
        "PCI Express Base Specification 2.1: the value after reset",
        "assumed: so that a page written costs about twice a page read; the paper says \
         \"significantly higher\"",
        "assumed: typical of hosts of that time",
        "assumed: typical of engines in programmable logic",
        "derived from the fields that section II lists: two addresses, flags, owner, status",
        "assumed: a polling loop on a Cortex-A9",
        "assumed: about 1 200 cycles at 667 MHz, below a page's transfer, as section IV says of \
         writes and leaves open for reads",
        "assumed: a few uncached register writes",
        "assumed: as the last",
        "assumed: an interrupt of a desktop processor of that time",
        "assumed",
        "assumed: a few stores",
        "assumed: two register writes across the link",
        "assumed: the block layer's completion",
        "assumed: a wake-up on another processor and the return to user space",
        "assumed: a direct read or write of one page down to the driver",
        "assumed: the next page of the same request",
        "assumed: the paper says that the device's parallelism determines it, and not its value",
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_takes_as_long_as_its_packets_and_round_trips() {
        let params = PRESET.params;
        // 32 packets of 152 bytes at 2 000 bytes per microsecond.
        assert_eq!(params.push_time(4_096), 300 + 2_432);
        // Eight pieces, four at a time.
        assert_eq!(params.pull_time(4_096), 300 + 2_432 + 2 * 1_200);
        assert_eq!(params.pull_time(32), 300 + 28 + 1_200);
    }
}
