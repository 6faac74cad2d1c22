//! Processors for threads on a machine with several NUMA nodes (Linux).

use std::fs;
use std::path::Path;

/// Where the kernel lists the nodes.
const NODES: &str = "/sys/devices/system/node";

/// Processors that threads should stay on, one after the other, neighbours on different nodes. Empty if this
/// thread may use no more than one node, or if the system does not say: then the scheduler knows better.
pub(crate) fn places() -> Vec<usize> {
    in_turn(nodes(Path::new(NODES), &allowed()))
}

/// Keeps the calling thread on a processor. If the system refuses, the thread stays where it is: slower, not wrong.
pub(crate) fn stay_on(processor: usize) {
    // SAFETY: a set of processors is plain bits, and all of them may be zero.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if processor < libc::CPU_SETSIZE as usize {
        // SAFETY: the processor is in the range of the set, which is ours.
        unsafe {
            libc::CPU_SET(processor, &mut set);
            libc::sched_setaffinity(0, size_of_val(&set), &set);
        }
    }
}

/// Processors that the calling thread may use; none if the system does not say.
fn allowed() -> Vec<usize> {
    // SAFETY: a set of processors is plain bits, and all of them may be zero.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } != 0 {
        return Vec::new();
    }
    // SAFETY: every processor is in the range of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// The allowed processors of each node, by the number of the node. Nodes without one are left out.
fn nodes(root: &Path, allowed: &[usize]) -> Vec<Vec<usize>> {
    let number = |name: &str| name.strip_prefix("node")?.parse::<usize>().ok();
    let mut numbers: Vec<usize> = fs::read_dir(root)
        .into_iter()
        .flatten()
        .filter_map(|entry| number(entry.ok()?.file_name().to_str()?))
        .collect();
    numbers.sort_unstable();
    let list = |node: usize| fs::read_to_string(root.join(format!("node{node}/cpulist"))).unwrap_or_default();
    numbers
        .into_iter()
        .map(|node| parse(&list(node)).filter(|cpu| allowed.contains(cpu)).collect())
        .filter(|cpus: &Vec<usize>| !cpus.is_empty())
        .collect()
}

/// Processors of a list like `0-3,8`. Parts that are no numbers are left out.
fn parse(list: &str) -> impl Iterator<Item = usize> {
    list.trim().split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<usize>(), last.parse::<usize>()) {
            (Ok(first), Ok(last)) => first..last + 1,
            _ => 0..0,
        }
    })
}

/// The first processor of each node, then the second, and so on; nothing for a single node.
fn in_turn(nodes: Vec<Vec<usize>>) -> Vec<usize> {
    if nodes.len() < 2 {
        return Vec::new();
    }
    let most = nodes.iter().map(Vec::len).max().unwrap_or(0);
    (0..most).flat_map(|at| nodes.iter().filter_map(move |cpus| cpus.get(at).copied())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree like the kernel's.
    fn tree(nodes: &[(usize, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory for the tree");
        for (node, list) in nodes {
            let folder = root.path().join(format!("node{node}"));
            fs::create_dir(&folder).expect("a folder for the node");
            fs::write(folder.join("cpulist"), list).expect("the list of the node");
        }
        // What else is there.
        fs::write(root.path().join("possible"), "0-1\n").expect("another file");
        fs::create_dir(root.path().join("power")).expect("another folder");
        root
    }

    #[test]
    fn neighbours_are_on_different_nodes() {
        let root = tree(&[(0, "0-2,8-9\n"), (1, "3-5\n"), (10, "6\n"), (2, "\n")]);
        let all: Vec<usize> = (0..64).collect();
        assert_eq!(nodes(root.path(), &all), [vec![0, 1, 2, 8, 9], vec![3, 4, 5], vec![6]]);
        assert_eq!(in_turn(nodes(root.path(), &all)), [0, 3, 6, 1, 4, 2, 5, 8, 9]);
        assert_eq!(in_turn(nodes(root.path(), &[2, 5, 9, 63])), [2, 5, 9]);
    }

    #[test]
    fn one_node_leaves_the_choice_to_the_scheduler() {
        let all: Vec<usize> = (0..64).collect();
        assert!(in_turn(nodes(tree(&[(0, "0-63\n")]).path(), &all)).is_empty());
        assert!(in_turn(nodes(tree(&[(0, "0-3\n"), (1, "4-7\n")]).path(), &[4, 6])).is_empty());
        assert!(in_turn(nodes(tree(&[(0, "what?"), (1, "4-7\n")]).path(), &all)).is_empty());
        assert!(in_turn(nodes(Path::new("/nowhere"), &all)).is_empty());
    }

    #[test]
    fn a_thread_stays_where_it_is_told() {
        let here = allowed();
        let last = *here.last().expect("a thread may use a processor");
        let seen = std::thread::spawn(move || {
            stay_on(last);
            allowed()
        });
        assert_eq!(seen.join().expect("the thread ends"), [last]);
        assert_eq!(allowed(), here, "other threads are left alone");
    }
}
