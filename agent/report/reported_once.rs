//! Facts are reported once, not at each look that finds them again.

/// Remembers which facts were reported.
#[derive(Debug)]
pub struct ReportedOnce<T> {
    reported: Vec<T>,
    limit: usize,
}

impl<T> Default for ReportedOnce<T> {
    fn default() -> Self {
        Self::with_limit(usize::MAX)
    }
}

impl<T> ReportedOnce<T> {
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

impl<T: PartialEq + Clone> ReportedOnce<T> {
    /// Marks a fact as reported, until it is forgotten; whether it was not yet, and is to be reported.
    pub fn mark_reported(&mut self, fact: &T) -> bool {
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
        now.iter().filter(|fact| self.mark_reported(fact)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_is_news_once_as_long_as_it_holds() {
        let mut reported_once = ReportedOnce::default();
        assert_eq!(reported_once.news(&["a", "b", "a"]), ["a", "b"]);
        assert_eq!(reported_once.news(&["c", "b"]), ["c"]);
        assert_eq!(reported_once.reported(), ["b", "c"]);
        assert_eq!(reported_once.news(&["a", "c"]), ["a"], "it passed and came back");
        assert!(reported_once.news(&[]).is_empty() && reported_once.reported().is_empty());
    }

    #[test]
    fn a_fact_that_is_asked_for_alone_is_remembered_up_to_the_limit() {
        let mut reported_once = ReportedOnce::with_limit(2);
        assert_eq!(
            ["a", "b", "a", "c", "b", "a"].map(|fact| reported_once.mark_reported(&fact)),
            [true, true, false, true, false, true]
        );
        reported_once.clear();
        assert!(reported_once.mark_reported(&"a"));
    }
}
