//! The receiving side's rooms: which items may be written for whom, who is writing, what was written.

use crate::frame::{Frame, Range, Refusal};
use crate::net::Stream;
use crate::regions::{Regions, inside};
use hotseam_sdk::views::Accept;
use hotseam_sdk::{Error, Result};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Rooms that may be open at once.
const MOST_ROOMS: usize = 4096;

/// Shared by the host's calls and the threads of connections.
#[derive(Debug, Default)]
pub(crate) struct Rooms {
    inner: Mutex<Inner>,
    /// Notified when a write has ended.
    quiet: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    regions: Regions,
    open: HashMap<u64, Room>,
}

#[derive(Debug, Default)]
struct Room {
    lists: HashMap<(u32, u32), List>,
    /// Frames that are being written.
    writing: Vec<Writing>,
    /// Set by `close`: nothing more is begun.
    closed: bool,
}

/// A frame that is being written.
#[derive(Debug)]
struct Writing {
    stream: Arc<Stream>,
    /// Component and layer, and where its items are in their list.
    place: (u32, u32),
    items: Vec<std::ops::Range<usize>>,
}

impl Writing {
    fn meets(&self, place: (u32, u32), items: &[std::ops::Range<usize>]) -> bool {
        let meet =
            |a: &std::ops::Range<usize>, b: &std::ops::Range<usize>| a.start < b.end && b.start < a.end;
        self.place == place && self.items.iter().any(|own| items.iter().any(|other| meet(own, other)))
    }
}

/// Accepted items of one component and layer, rising, and which of them were written.
#[derive(Debug)]
struct List {
    items: Vec<i32>,
    written: Vec<bool>,
}

impl List {
    /// Where the items `first` to `first + n - 1` are, if all of them are accepted.
    fn find(&self, first: u32, n: u32) -> Option<std::ops::Range<usize>> {
        let first = i32::try_from(first).ok()?;
        let at = self.items.binary_search(&first).ok()?;
        let range = at..at.checked_add(n as usize)?;
        let found = self.items.get(range.clone())?;
        // Rising and distinct: the ends tell that nothing is left out between them.
        (i64::from(*found.last()?) == i64::from(first) + i64::from(n) - 1).then_some(range)
    }
}

/// Leave to write the items of one frame. Their room is not closed before it goes.
pub(crate) struct Pin<'a> {
    rooms: &'a Rooms,
    room: u64,
    stream: &'a Arc<Stream>,
    /// First byte to write and number of bytes, of each range of the frame.
    pub(crate) to: Vec<(*mut u8, usize)>,
}

impl Pin<'_> {
    /// Whether nobody waits for the pin to go.
    pub(crate) fn wanted(&self) -> bool {
        // Whoever waits ends the connection.
        !self.stream.is_shut()
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let mut inner = self.rooms.lock();
        if let Some(room) = inner.open.get_mut(&self.room)
            && let Some(at) =
                room.writing.iter().position(|writing| Arc::ptr_eq(&writing.stream, self.stream))
        {
            room.writing.swap_remove(at);
        }
        self.rooms.quiet.notify_all();
    }
}

impl Rooms {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is complete before the lock is released, so a poisoned state is still whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes every room and takes other regions.
    pub(crate) fn replace(&self, regions: Regions) {
        let open: Vec<u64> = self.lock().open.keys().copied().collect();
        open.into_iter().for_each(|room| {
            self.close(room);
        });
        self.lock().regions = regions;
    }

    /// Lets items be written for a room.
    pub(crate) fn accept(&self, a: &Accept<'_>) -> Result<()> {
        let inner = &mut *self.lock();
        let region = inner.regions.get(a.component, a.layer)?;
        inside(region, "accepted", a.items, region.dst_items)?;
        if inner.open.len() >= MOST_ROOMS && !inner.open.contains_key(&a.room) {
            return Err(Error::internal(format!("{MOST_ROOMS} rooms are open")));
        }
        let mut items = a.items.to_vec();
        items.sort_unstable();
        if items.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::argument(format!("room {}: an item is accepted twice", a.room)));
        }
        let list = List { written: vec![false; items.len()], items };
        let room = inner.open.entry(a.room).or_default();
        match room.closed || room.lists.contains_key(&(a.component, a.layer)) {
            true => Err(Error::argument(format!("room {} is in use", a.room))),
            false => {
                room.lists.insert((a.component, a.layer), list);
                Ok(())
            }
        }
    }

    /// Leave to write a frame's items on a connection. Another sender that writes some of them is cut off and waited for, so that
    /// no byte is written by two at once.
    pub(crate) fn pin<'a>(
        &'a self,
        frame: &Frame,
        stream: &'a Arc<Stream>,
    ) -> std::result::Result<Pin<'a>, Refusal> {
        let place = (frame.component, frame.layer);
        let mut guard = self.lock();
        let items = loop {
            let room =
                guard.open.get_mut(&frame.room).filter(|room| !room.closed).ok_or(Refusal::UnknownRoom)?;
            let list = room.lists.get(&place).ok_or(Refusal::NotAccepted)?;
            let items = frame.ranges.iter().map(|range| list.find(range.first, range.items));
            let items: Vec<_> = items.collect::<Option<_>>().ok_or(Refusal::NotAccepted)?;
            let mut free = true;
            for writing in room.writing.iter().filter(|writing| writing.meets(place, &items)) {
                free = false;
                writing.stream.shutdown();
            }
            if free {
                break items;
            }
            guard = self.quiet.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        let Inner { regions, open } = &mut *guard;
        let region = regions.get(frame.component, frame.layer).map_err(|_| Refusal::NotAccepted)?;
        if region.item_bytes != u64::from(frame.item_bytes) {
            return Err(Refusal::ItemBytes);
        }
        let room = open.get_mut(&frame.room).ok_or(Refusal::UnknownRoom)?;
        room.writing.push(Writing { stream: Arc::clone(stream), place, items });
        let to = |range: &Range| {
            let at = range.first as usize * region.item_bytes as usize;
            // SAFETY: accepted items are inside the region, as `accept` checked.
            (unsafe { region.dst.add(at) }, frame.bytes_of(range) as usize)
        };
        let to = frame.ranges.iter().map(to).collect();
        Ok(Pin { rooms: self, room: frame.room, stream, to })
    }

    /// Notes that a frame's items are in place.
    pub(crate) fn written(&self, frame: &Frame) {
        let mut inner = self.lock();
        let room = inner.open.get_mut(&frame.room);
        let list = room.and_then(|room| room.lists.get_mut(&(frame.component, frame.layer)));
        let Some(list) = list else { return };
        for range in &frame.ranges {
            if let Some(found) = list.find(range.first, range.items) {
                list.written[found].fill(true);
            }
        }
    }

    /// Ends a room; returns the items that were written. Connections that are writing for it are cut, so that this does not
    /// wait for a slow sender.
    pub(crate) fn close(&self, number: u64) -> u64 {
        let mut inner = self.lock();
        loop {
            let Some(room) = inner.open.get_mut(&number) else { return 0 };
            room.closed = true;
            if room.writing.is_empty() {
                break;
            }
            room.writing.iter().for_each(|writing| writing.stream.shutdown());
            inner = self.quiet.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        let room = inner.open.remove(&number);
        let lists = room.iter().flat_map(|room| room.lists.values());
        lists.map(|list| list.written.iter().filter(|written| **written).count() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Place;
    use crate::net::{Listener, Medium};
    use hotseam_sdk::abi::{Region, component};
    use std::time::Duration;

    fn streams(n: usize) -> Vec<Arc<Stream>> {
        let (_listener, address) = Listener::bind(Medium::Tcp, "127.0.0.1:0".parse().unwrap()).unwrap();
        (0..n).map(|_| Arc::new(Stream::connect(&address, Duration::from_secs(5)).unwrap())).collect()
    }

    fn rooms(dst: &mut [u8]) -> Rooms {
        let region = Region {
            component: component::C4,
            layer: 2,
            src: std::ptr::null(),
            dst: dst.as_mut_ptr(),
            item_bytes: 8,
            src_items: 0,
            dst_items: dst.len() as u64 / 8,
            src_offset: 0,
            src_fd: -1,
        };
        let rooms = Rooms::default();
        // SAFETY: the tests keep their buffers longer than the rooms.
        rooms.replace(unsafe { Regions::new(&[region]) }.unwrap());
        rooms.accept(&Accept { room: 1, component: component::C4, layer: 2, items: &[0, 1, 2, 5] }).unwrap();
        rooms
    }

    fn frame(first: u32, items: u32) -> Frame {
        let (place, ranges) = (Place::Inline, vec![Range { first, items, offset: 0 }]);
        Frame { seq: 1, room: 1, component: component::C4, layer: 2, item_bytes: 8, place, ranges }
    }

    #[test]
    fn the_same_items_are_never_written_by_two() {
        let mut dst = [0; 64];
        let (rooms, streams) = (rooms(&mut dst), streams(3));
        let first = rooms.pin(&frame(0, 2), &streams[0]).unwrap();
        // Others of the room are free.
        drop(rooms.pin(&frame(2, 1), &streams[1]).unwrap());
        assert!(first.wanted() && !streams[0].is_shut());
        std::thread::scope(|scope| {
            let second = scope.spawn(|| rooms.pin(&frame(1, 2), &streams[2]).map(|pin| pin.to.len()));
            while first.wanted() {
                std::thread::yield_now();
            }
            assert!(!second.is_finished() && streams[0].is_shut());
            drop(first);
            assert_eq!(second.join().unwrap(), Ok(1));
        });
        assert!(!streams[1].is_shut() && !streams[2].is_shut());
    }

    #[test]
    fn a_room_is_closed_once_nobody_writes_it() {
        let mut dst = [0; 64];
        let (rooms, streams) = (rooms(&mut dst), streams(2));
        let done = frame(5, 1);
        drop(rooms.pin(&done, &streams[1]).unwrap());
        rooms.written(&done);
        let pin = rooms.pin(&frame(0, 1), &streams[0]).unwrap();
        std::thread::scope(|scope| {
            let close = scope.spawn(|| rooms.close(1));
            while pin.wanted() {
                std::thread::yield_now();
            }
            assert_eq!(rooms.pin(&frame(2, 1), &streams[1]).err(), Some(Refusal::UnknownRoom));
            assert!(!close.is_finished());
            drop(pin);
            assert_eq!(close.join().unwrap(), 1);
        });
        assert_eq!(rooms.close(1), 0);
    }

    #[test]
    fn only_accepted_runs_are_found() {
        let list = List { items: vec![2, 3, 4, 9], written: vec![false; 4] };
        assert_eq!(list.find(2, 3), Some(0..3));
        assert_eq!(list.find(9, 1), Some(3..4));
        for (first, n) in [(2, 4), (4, 2), (5, 1), (9, 2), (u32::MAX, 1), (2, u32::MAX), (2, 0)] {
            assert_eq!(list.find(first, n), None, "{first} {n}");
        }
    }
}
