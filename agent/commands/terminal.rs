//! What a terminal takes, if there is one.

use std::io::IsTerminal;

use crate::report::screen::Style;

/// Where no terminal says how wide it is.
pub(super) const WIDTH: usize = 100;

/// Columns of the terminal that standard output is.
pub(super) fn width() -> usize {
    let stdout = std::io::stdout();
    let columns = stdout.is_terminal().then(|| rustix::termios::tcgetwinsize(&stdout).ok()).flatten();
    columns.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(WIDTH)
}

/// How a page is drawn there. Colours are a terminal's, unless NO_COLOR (no-color.org) or a dumb terminal speaks against it.
pub(super) fn style(verbose: bool) -> Style {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    let color = std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb;
    Style { width: width(), color, verbose }
}
