//! Futures that run side by side.
//!
//! In: futures of one type. Out: what they came to, in their order. Never: a task or a thread of its own.

use std::future::Future;

use futures_util::future::{LocalBoxFuture, join_all};

/// Waits for all of them side by side, and gives what they came to in their order.
///
/// `join_all` alone is compiled for each kind of future, 8 KB each time; what it is given here is of one kind.
pub(crate) async fn all<T>(futures: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let futures: Vec<_> = futures.into_iter().collect();
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    let mut tasks: Vec<LocalBoxFuture<'_, ()>> = Vec::new();
    for (place, future) in results.iter_mut().zip(futures) {
        tasks.push(Box::pin(async { *place = Some(future.await) }));
    }
    join_all(tasks).await;
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock;

    #[tokio::test(start_paused = true)]
    async fn all_of_them_run_side_by_side_and_are_given_in_their_order() {
        let (clock, begun) = (Clock::system(), tokio::time::Instant::now());
        let slow = async |seconds: u64| {
            clock.wait(Duration::from_secs(seconds)).await;
            seconds
        };
        assert_eq!(all([3, 1, 2].map(slow)).await, [3, 1, 2]);
        assert_eq!(begun.elapsed().as_secs(), 3);
        assert!(all((0..50).map(slow)).await.len() == 50 && all(Vec::<std::future::Ready<u8>>::new()).await.is_empty());
    }
}
