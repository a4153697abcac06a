//! Facts are reported once, not at each look that finds them again.

/// Remembers which facts were reported.
#[derive(Debug)]
pub struct Damper<T> {
    reported: Vec<T>,
    limit: usize,
}

impl<T> Default for Damper<T> {
    fn default() -> Self {
        Self::with_limit(usize::MAX)
    }
}

impl<T> Damper<T> {
    /// Remembers this many at most, the oldest forgotten first: facts that come from outside may be without number.
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        Self { reported: Vec::new(), limit }
    }

    /// Those that were reported and still hold, in the order in which they came.
    #[must_use]
    pub fn reported(&self) -> &[T] {
        &self.reported
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.reported.clear();
    }
}

impl<T: PartialEq + Clone> Damper<T> {
    /// Whether a fact is to be reported. It is remembered until it is forgotten.
    pub fn is_news(&mut self, fact: &T) -> bool {
        let is_news = !self.reported.contains(fact);
        if is_news {
            self.reported.push(fact.clone());
            self.reported.drain(..self.reported.len().saturating_sub(self.limit));
        }
        is_news
    }

    /// What of all that holds now is to be reported. What no longer holds is forgotten: if it comes back, it is news again.
    pub fn news(&mut self, now: &[T]) -> Vec<T> {
        self.reported.retain(|fact| now.contains(fact));
        now.iter().filter(|fact| self.is_news(fact)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_is_news_once_as_long_as_it_holds() {
        let mut damper = Damper::default();
        assert_eq!(damper.news(&["a", "b", "a"]), ["a", "b"]);
        assert_eq!(damper.news(&["c", "b"]), ["c"]);
        assert_eq!(damper.reported(), ["b", "c"]);
        assert_eq!(damper.news(&["a", "c"]), ["a"], "it passed and came back");
        assert!(damper.news(&[]).is_empty() && damper.reported().is_empty());
    }

    #[test]
    fn a_fact_that_is_asked_for_alone_is_remembered_up_to_the_limit() {
        let mut damper = Damper::with_limit(2);
        assert_eq!(["a", "b", "a", "c", "b", "a"].map(|fact| damper.is_news(&fact)), [true, true, false, true, false, true]);
        damper.clear();
        assert!(damper.is_news(&"a"));
    }
}
