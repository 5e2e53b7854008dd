//! What to paste into a VMM.

use std::path::Path;

use anyhow::anyhow;
use evenkeel_wire::format_size;

use crate::args::{ConnectArgs, Vmm};
use crate::failure::{Failure, Outcome};
use crate::{place, print};

/// The name by which the agent finds its virtio-serial port.
const AGENT_PORT: &str = "org.evenkeel.agent.0";

pub(crate) fn run(args: &ConnectArgs) -> Outcome<()> {
    let dir = place::socket_dir(args.socket_dir.as_deref())?;
    let socket = place::disk(&dir, &args.name);
    if !socket.exists() {
        eprintln!("evenkeel: nobody serves {} so far; is the name right?", socket.display());
    }
    let socket = text_of(&socket)?;
    let agent = place::agent(&dir, args.vm.as_deref().unwrap_or(&args.name));
    let agent = (args.vm.is_some() || agent.exists()).then_some(agent);
    let agent = agent.as_deref().map(text_of).transpose()?;
    if agent.is_some()
        && let Some(hint) = agent_hint(args.vmm)
    {
        eprintln!("evenkeel: {hint}");
    }
    let mut text = match args.vmm {
        Vmm::Qemu => qemu(args, socket, agent),
        Vmm::Libvirt => libvirt(args, socket, agent),
        Vmm::CloudHypervisor => cloud_hypervisor(args, without_comma(socket)?),
        Vmm::Crosvm => crosvm(without_comma(socket)?),
    };
    text.push('\n');
    print(&text)
}

/// Returns what to say of the agent's port to users of a VMM that is not given one.
const fn agent_hint(vmm: Vmm) -> Option<&'static str> {
    match vmm {
        Vmm::Qemu | Vmm::Libvirt => None,
        Vmm::CloudHypervisor => Some(
            "Cloud Hypervisor has no port for the agent; give the VM a vsock, --vsock \
             cid=3,socket=PATH, and say vsock = \"PATH\" in [pools.POOL.vms.NAME]",
        ),
        Vmm::Crosvm => Some("how this VMM connects the agent's port is not known; left out"),
    }
}

/// Returns the arguments with which QEMU attaches a disk, memory aside.
pub(crate) fn qemu_device(name: &str, socket: &str, cpus: u16) -> [String; 2] {
    // QEMU writes a comma inside a value twice.
    let path = socket.replace(',', ",,");
    [
        format!("-chardev {}", quoted(&format!("socket,id=ek-{name},path={path},reconnect=1"))),
        format!("-device vhost-user-blk-pci,chardev=ek-{name},num-queues={cpus}"),
    ]
}

/// Returns the arguments with which QEMU connects the port of a VM's agent.
fn qemu_agent(socket: &str) -> [String; 3] {
    let path = socket.replace(',', ",,");
    [
        "-device virtio-serial-pci".to_owned(),
        format!("-chardev {}", quoted(&format!("socket,id=ek-agent,path={path},reconnect=1"))),
        format!("-device virtserialport,chardev=ek-agent,name={AGENT_PORT}"),
    ]
}

fn qemu(args: &ConnectArgs, socket: &str, agent: Option<&str>) -> String {
    let memory = format_size(args.memory);
    let mut arguments = vec![
        format!("-m {memory} -object memory-backend-memfd,id=ek-mem,size={memory},share=on"),
        "-machine memory-backend=ek-mem".to_owned(),
    ];
    arguments.extend(qemu_device(&args.name, socket, args.cpus));
    arguments.extend(agent.into_iter().flat_map(qemu_agent));
    let mut text = arguments.join(" \\\n");
    // Remarks come last: before or between the arguments a shell would end the command there.
    text.push_str(
        "\n# The first two lines, memory that the daemon shares, once per VM; the next two per disk.\n",
    );
    if agent.is_some() {
        text.push_str("# The last three connect the port of evenkeel-agent, once per VM.\n");
    }
    text.push_str("# QEMU 9.2 and later also take reconnect-ms=1000 for reconnect=1.");
    text
}

fn libvirt(args: &ConnectArgs, socket: &str, agent: Option<&str>) -> String {
    let channel = agent.map_or(String::new(), |agent| {
        format!(
            "\n\n<!-- The port of evenkeel-agent, once per VM, below <devices>: -->\n\
             <channel type='unix'>\n  \
               <source mode='connect' path='{}'>\n    \
                 <reconnect enabled='yes' timeout='1'/>\n  \
               </source>\n  \
               <target type='virtio' name='{AGENT_PORT}'/>\n\
             </channel>",
            escaped(agent),
        )
    });
    let disk = format!(
        "<!-- Memory that the daemon shares, once, directly below <domain>: -->\n\
         <memoryBacking>\n  \
           <source type='memfd'/>\n  \
           <access mode='shared'/>\n\
         </memoryBacking>\n\n\
         <!-- The disk, below <devices>; choose a free target: -->\n\
         <disk type='vhostuser' device='disk'>\n  \
           <driver name='qemu' type='raw' queues='{}'/>\n  \
           <source type='unix' path='{}'>\n    \
             <reconnect enabled='yes' timeout='1'/>\n  \
           </source>\n  \
           <target dev='vdb' bus='virtio'/>\n\
         </disk>",
        args.cpus,
        escaped(socket),
    );
    disk + &channel
}

fn cloud_hypervisor(args: &ConnectArgs, socket: &str) -> String {
    format!(
        "--memory size={},shared=on \\\n--disk {}",
        format_size(args.memory),
        quoted(&format!("vhost_user=true,socket={socket},num_queues={},queue_size=256", args.cpus)),
    )
}

fn crosvm(socket: &str) -> String {
    format!("--vhost-user {}", quoted(&format!("block,socket={socket}")))
}

fn text_of(socket: &Path) -> Outcome<&str> {
    socket.to_str().ok_or_else(|| {
        let path = socket.display();
        Failure::wrong_use(anyhow!("{path} is not UTF-8; choose another --socket-dir"))
    })
}

/// Refuses what the option syntax of these VMMs cannot express.
fn without_comma(socket: &str) -> Outcome<&str> {
    if socket.contains(',') {
        let error = anyhow!(
            "{socket} contains a comma, which this VMM takes as the end of the \
                             path; choose another --socket-dir"
        );
        return Err(Failure::wrong_use(error));
    }
    Ok(socket)
}

/// Returns `text` as one word of a shell.
fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=,:@%".contains(&byte);
    if text.bytes().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Returns `text` as the value of an XML attribute.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_a_shell_would_take_apart_are_quoted() {
        assert_eq!(quoted("a,b=/c.sock"), "a,b=/c.sock");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn who_gets_no_port_for_the_agent_is_told_what_to_do() {
        assert_eq!([Vmm::Qemu, Vmm::Libvirt].map(agent_hint), [None; 2]);
        assert!(agent_hint(Vmm::CloudHypervisor).is_some_and(|hint| hint.contains("vsock = ")));
        assert!(agent_hint(Vmm::Crosvm).is_some());
    }

    #[test]
    fn commas_are_doubled_for_qemu_and_refused_where_nothing_helps() {
        let [chardev, _] = qemu_device("web", "/a,b/web.sock", 1);
        assert_eq!(chardev, "-chardev socket,id=ek-web,path=/a,,b/web.sock,reconnect=1");
        assert_eq!(without_comma("/a,b").map_err(|_| ()), Err(()));
    }

    #[test]
    fn an_attribute_cannot_be_broken_out_of() {
        assert_eq!(escaped("a'/><&"), "a&apos;/>&lt;&amp;");
    }
}
