//! Events of the console of Windows. After the events of a window that closes, a session that ends and a
//! system that shuts down, Windows ends the process within seconds: its handler does not return, which leaves
//! these seconds to the work.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use tokio::signal::windows::{
    CtrlBreak, CtrlC, CtrlClose, CtrlLogoff, CtrlShutdown, ctrl_break, ctrl_c, ctrl_close, ctrl_logoff,
    ctrl_shutdown,
};

use super::Watch;

/// The signals of Unix for which the events stand, in exit codes.
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

/// The events that are received.
struct Events {
    c: CtrlC,
    pause: CtrlBreak,
    close: CtrlClose,
    logoff: CtrlLogoff,
    shutdown: CtrlShutdown,
}

impl Events {
    fn new() -> io::Result<Events> {
        Ok(Events {
            c: ctrl_c()?,
            pause: ctrl_break()?,
            close: ctrl_close()?,
            logoff: ctrl_logoff()?,
            shutdown: ctrl_shutdown()?,
        })
    }

    /// The next event, as a signal with the way to send another.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<(i32, &'static str)> {
        if self.c.poll_recv(context).is_ready() {
            return Poll::Ready((SIGINT, "press Ctrl-C again"));
        }
        if self.pause.poll_recv(context).is_ready() {
            return Poll::Ready((SIGINT, "press Ctrl-Break again"));
        }
        if self.close.poll_recv(context).is_ready() {
            return Poll::Ready((SIGHUP, "wait for Windows"));
        }
        if self.logoff.poll_recv(context).is_ready() || self.shutdown.poll_recv(context).is_ready() {
            return Poll::Ready((SIGTERM, "wait for Windows"));
        }
        Poll::Pending
    }
}

pub(super) fn install() {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    if let (Ok(runtime), Ok(events)) = (runtime, Events::new()) {
        std::thread::spawn(move || runtime.block_on(watch(events)));
    }
}

async fn watch(mut events: Events) {
    let mut watch = Watch::default();
    loop {
        let (signal, again) = poll_fn(|context| events.poll(context)).await;
        watch.receive(signal, again);
    }
}
