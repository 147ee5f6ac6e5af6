//! Places for connections: when all are taken, the connection that has waited longest without a request under way makes
//! room. So whoever opens connections and says nothing keeps nobody else out.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::Notify;

/// The connections that wait for a request, by how long they do.
#[derive(Debug, Default)]
pub(super) struct Seats {
    next: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, Rc<Notify>>>,
}

impl Seats {
    /// Asks the connection that waited longest to leave; `false` when every one has a request under way.
    pub fn make_room(&self) -> bool {
        let longest = self.waiting.borrow_mut().pop_first();
        longest.map(|(_, leave)| leave.notify_one()).is_some()
    }
}

/// The place of one connection. A new one waits for its first request.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Rc<Seats>,
    /// Its place in the order of waiting; `None` while a request is under way.
    order: Cell<Option<u64>>,
    /// Whether it ever had a request.
    used: Cell<bool>,
    leave: Rc<Notify>,
}

impl Seat {
    pub fn new(seats: &Rc<Seats>) -> Rc<Self> {
        let seat =
            Self { seats: Rc::clone(seats), order: Cell::new(None), used: Cell::new(false), leave: Rc::default() };
        seat.wait();
        Rc::new(seat)
    }

    /// Completes when the connection is to make room.
    pub async fn leave(&self) {
        self.leave.notified().await;
    }

    /// Whether there may be an answer on its way out.
    pub fn was_used(&self) -> bool {
        self.used.get()
    }

    /// Whether a request is under way.
    pub fn has_request(&self) -> bool {
        self.order.get().is_none()
    }

    /// A request has come; it is under way until the value is dropped.
    pub fn work(self: &Rc<Self>) -> UnderWay {
        self.used.set(true);
        self.give_up_order();
        UnderWay(Rc::clone(self))
    }

    fn wait(&self) {
        let order = self.seats.next.get();
        self.seats.next.set(order + 1);
        self.seats.waiting.borrow_mut().insert(order, Rc::clone(&self.leave));
        self.order.set(Some(order));
    }

    fn give_up_order(&self) {
        if let Some(order) = self.order.take() {
            self.seats.waiting.borrow_mut().remove(&order);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.give_up_order();
    }
}

/// A request under way on a connection.
#[derive(Debug)]
pub(super) struct UnderWay(Rc<Seat>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// The body of an answer, whose request is under way as long as the body is sent.
pub(super) struct Sent<B> {
    pub body: B,
    /// Held for its end alone.
    pub _under_way: UnderWay,
}

impl<B: Body + Unpin> Body for Sent<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `seat` was asked to leave.
    fn is_asked(seat: &Seat) -> bool {
        let mut leaving = std::pin::pin!(seat.leave());
        leaving.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[test]
    fn the_one_that_waited_longest_makes_room_and_one_with_a_request_never_does() {
        let seats = Rc::new(Seats::default());
        let [first, second, third] = [(); 3].map(|()| Seat::new(&seats));
        let under_way = first.work();
        assert!(seats.make_room() && is_asked(&second) && !is_asked(&third));
        drop(under_way);
        assert!(first.was_used() && !second.was_used());
        assert!(seats.make_room() && is_asked(&third) && !is_asked(&first), "the third has waited longer by now");
        let _busy = first.work();
        assert!(!seats.make_room());
    }

    #[test]
    fn a_connection_that_has_ended_is_asked_nothing() {
        let seats = Rc::new(Seats::default());
        drop(Seat::new(&seats));
        assert!(!seats.make_room());
        assert!(seats.waiting.borrow().is_empty());
    }
}
