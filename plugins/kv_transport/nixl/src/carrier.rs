//! NIXL as a carrier: the receiving side reads from memory that the sending side has registered.
//!
//! A sending side is asked for nothing more than its card, and gets no right to write anywhere. A read that has failed or takes
//! too long may still be written to by the network as long as its agent lives, so that agent is ended before the items are given
//! back; other senders then connect anew, and send again what was not acknowledged.

use crate::agent::{Agent, Outcome, Read};
use crate::capi::Capi;
use hotseam_kv_wire::{Carrier, Incoming, Outgoing, Part, Span};
use hotseam_sdk::{Error, Host, Result};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fmt;
use std::io::{self, Read as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How long a read goes on that nobody waits for any more.
const GRACE: Duration = Duration::from_millis(200);

/// The carrier of one instance.
pub(crate) struct Nixl {
    capi: &'static Capi,
    /// Parameters of the backend.
    settings: Vec<(CString, CString)>,
    /// How long one read may take.
    patience: Duration,
    host: Host,
    state: Mutex<State>,
}

impl fmt::Debug for Nixl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nixl").finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    /// Serves reads of the sending side's memory.
    sending: Option<Agent>,
    card: Vec<u8>,
    /// The receiving side's memory, and the agent that reads into it.
    receiving: Vec<Span>,
    reading: Option<Arc<Reading>>,
}

/// The agent that reads, until a read went wrong.
#[derive(Debug)]
struct Reading {
    /// Whoever reads holds it shared; it is ended by whoever gets it alone.
    agent: RwLock<Option<Agent>>,
    /// Set before it is ended, so that others let go.
    broken: AtomicBool,
    /// Connections by name of the sending side's agent.
    met: Mutex<HashMap<CString, usize>>,
}

impl Nixl {
    pub(crate) fn new(
        capi: &'static Capi,
        settings: Vec<(CString, CString)>,
        patience: Duration,
        host: Host,
    ) -> Self {
        Self { capi, settings, patience, host, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is complete before the lock is released, so a poisoned state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Safety
    /// The spans are valid as long as the agent lives.
    unsafe fn agent(&self, serves: bool, spans: &[Span]) -> Outcome<Agent> {
        // Names are kept apart by chance, since agents of any two workers may meet.
        let mut random = [0u8; 16];
        let file = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random));
        file.map_err(|error| format!("no random name: {error}"))?;
        let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = CString::new(format!("hotseam-{digits}")).map_err(|error| error.to_string())?;
        // SAFETY: the caller's contract.
        unsafe { Agent::new(self.capi, &name, serves, &self.settings, spans) }
    }

    /// The agent that reads; a new one where the last was ended.
    fn reading(&self, state: &mut State) -> Outcome<Arc<Reading>> {
        if state.receiving.is_empty() {
            return Err("no memory of a receiving side is registered".to_owned());
        }
        if let Some(reading) = state.reading.take_if(|reading| !reading.broken.load(Ordering::Acquire)) {
            return Ok(Arc::clone(state.reading.insert(reading)));
        }
        // SAFETY: what `register` was given stays valid until its next call, which ends the agent first.
        let agent = unsafe { self.agent(false, &state.receiving)? };
        let reading = Reading {
            agent: RwLock::new(Some(agent)),
            broken: AtomicBool::new(false),
            met: Mutex::default(),
        };
        Ok(Arc::clone(state.reading.insert(Arc::new(reading))))
    }
}

impl Carrier for Nixl {
    fn word(&self) -> &'static str {
        "nixl"
    }

    unsafe fn register(&self, sending: &[Span], receiving: &[Span]) -> Result<()> {
        let state = &mut *self.state();
        if let Some(reading) = state.reading.take() {
            reading.end();
        }
        *state = State::default();
        let serve = |state: &mut State| {
            if !sending.is_empty() {
                // SAFETY: the caller's contract; the next call ends the agent first.
                let agent = unsafe { self.agent(true, sending)? };
                state.card = agent.card()?;
                state.sending = Some(agent);
            }
            if !receiving.is_empty() {
                state.receiving = receiving.to_vec();
                self.reading(state)?;
            }
            Ok(())
        };
        serve(state).map_err(|why: String| Error::internal(why))
    }

    fn outgoing(&self) -> io::Result<(Vec<u8>, Box<dyn Outgoing>)> {
        let state = self.state();
        match &state.sending {
            Some(_) => Ok((state.card.clone(), Box::new(Serving))),
            None => Err(io::Error::other("no memory of a sending side is registered")),
        }
    }

    fn incoming(&self, card: &[u8]) -> io::Result<Box<dyn Incoming>> {
        let met = self.reading(&mut self.state()).and_then(|reading| {
            // Of a card that it has taken in part NIXL remembers enough to refuse the whole one later.
            let name = reading.meet(card).inspect_err(|_| reading.end())?;
            Ok(End { reading, name, patience: self.patience, host: self.host })
        });
        match met {
            Ok(end) => Ok(Box::new(end)),
            Err(why) => {
                self.host.log("kv_transport/nixl", &why);
                Err(io::Error::other(why))
            }
        }
    }
}

/// The library serves reads without being asked.
struct Serving;

impl Outgoing for Serving {}

impl Reading {
    fn meet(&self, card: &[u8]) -> Outcome<CString> {
        let agent = self.agent.read().unwrap_or_else(PoisonError::into_inner);
        let agent = agent.as_ref().ok_or("the agent was ended")?;
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        let name = agent.meet(card)?;
        *met.entry(name.clone()).or_default() += 1;
        Ok(name)
    }

    fn part(&self, name: &CStr) {
        let agent = self.agent.read().unwrap_or_else(PoisonError::into_inner);
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(connections) = met.get_mut(name) else { return };
        *connections -= 1;
        if *connections == 0 {
            met.remove(name);
            if let Some(agent) = &*agent {
                agent.forget(name);
            }
        }
    }

    /// Ends the agent; afterwards nothing is written by it.
    fn end(&self) {
        self.broken.store(true, Ordering::Release);
        self.agent.write().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// The receiving end of a connection.
struct End {
    reading: Arc<Reading>,
    name: CString,
    patience: Duration,
    host: Host,
}

impl End {
    /// # Safety
    /// As for [`Agent::read`].
    unsafe fn read(&self, parts: &[Part], wanted: &dyn Fn() -> bool) -> Read {
        let unwanted: Cell<Option<Instant>> = Cell::new(None);
        let wait = |elapsed: Duration| {
            if self.reading.broken.load(Ordering::Acquire) {
                return Err("another read has ended the agent".to_owned());
            }
            if elapsed > self.patience {
                return Err(format!("a read has no end after {:.1} s", elapsed.as_secs_f32()));
            }
            if !wanted() && unwanted.get().is_none() {
                unwanted.set(Some(Instant::now()));
            }
            match unwanted.get() {
                Some(since) if since.elapsed() > GRACE => Err("nobody waits for it any more".to_owned()),
                _ => Ok(()),
            }
        };
        let agent = self.reading.agent.read().unwrap_or_else(PoisonError::into_inner);
        match &*agent {
            // SAFETY: the caller's contract; a broken agent is ended by `fetch` before it returns.
            Some(agent) => unsafe { agent.read(&self.name, parts, &wait) },
            None => Read::Refused("the agent was ended".to_owned()),
        }
    }
}

impl Incoming for End {
    unsafe fn fetch(&mut self, parts: &[Part], wanted: &dyn Fn() -> bool) -> io::Result<()> {
        // SAFETY: the caller's contract.
        let why = match unsafe { self.read(parts, wanted) } {
            Read::Done => return Ok(()),
            Read::Refused(why) => why,
            Read::Broken(why) => {
                self.reading.end();
                why
            }
        };
        self.host.log("kv_transport/nixl", &why);
        Err(io::Error::other(why))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.reading.part(&self.name);
    }
}
