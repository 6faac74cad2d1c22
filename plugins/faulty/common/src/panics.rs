//! The call that panics.

/// Panics in one call of a variant: that of its option `call`, where its fault is `panic`.
#[derive(Debug)]
pub struct Panics(Option<String>);

impl Panics {
    /// Of a variant whose fault is (`on`) or is not to panic. If the call is `create`, this is where.
    pub fn new(on: bool, call: String) -> Self {
        let panics = Self(on.then_some(call));
        panics.at("create");
        panics
    }

    /// Whether `call` is the one.
    pub fn is(&self, call: &str) -> bool {
        self.0.as_deref() == Some(call)
    }

    /// Panics if `call` is the one.
    pub fn at(&self, call: &str) {
        assert!(!self.is(call), "planted panic in {call}");
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        self.at("destroy");
    }
}

#[cfg(test)]
mod tests {
    use super::Panics;
    use std::panic::catch_unwind;

    #[test]
    fn one_call_panics_and_only_if_that_is_the_fault() {
        drop(Panics::new(false, "create".to_owned()));
        let panics = Panics::new(true, "core".to_owned());
        panics.at("store");
        let caught = catch_unwind(|| panics.at("core")).expect_err("it panics");
        assert_eq!(caught.downcast_ref::<String>().map(String::as_str), Some("planted panic in core"));
        catch_unwind(|| Panics::new(true, "create".to_owned())).expect_err("it panics");
        catch_unwind(|| drop(Panics::new(true, "destroy".to_owned()))).expect_err("it panics");
    }
}
