//! The steps of bringing a node up against time: what each waited for, how long it took, and the chain of steps that
//! the whole took as long as. Pure: step_timings in, a page or a picture for people out.

use std::time::Duration;

use super::condition_state::ConditionState;
use super::step_timing::StepTiming;
use super::text::{duration, escaped, shortened};

impl StepTiming {
    /// When it ended.
    #[must_use]
    pub fn ended_ms(&self) -> u64 {
        self.began_ms.saturating_add(self.took_ms)
    }
}

/// The places of the step_timings that the run could not be shorter than: from the one that ended last, or failed, back through
/// the need that ended last. In the order of time.
#[must_use]
pub fn critical_path(step_timings: &[StepTiming]) -> Vec<usize> {
    let failed = step_timings.iter().position(|timing| timing.state == ConditionState::Failed);
    let last = || (0..step_timings.len()).max_by_key(|at| step_timings.get(*at).map(StepTiming::ended_ms));
    let mut path = Vec::new();
    let mut next = failed.or_else(last);
    // A record from elsewhere might go in a circle.
    while let Some(at) = next.filter(|at| !path.contains(at)) {
        path.push(at);
        let after = step_timings.get(at).map(|timing| timing.after.as_slice()).unwrap_or_default();
        next = after.iter().rev().find_map(|need| step_timings.iter().position(|timing| timing.step == *need));
    }
    path.reverse();
    path
}

/// How long the whole took, and how much of that the critical path accounts for. One that released the next before its
/// own end counts up to there.
fn sums(step_timings: &[StepTiming], path: &[usize]) -> (u64, u64) {
    let total = step_timings.iter().map(StepTiming::ended_ms).max().unwrap_or_default();
    let mut sum = 0_u64;
    for (place, timing) in path.iter().filter_map(|at| step_timings.get(*at)).enumerate() {
        let next = path.get(place + 1).and_then(|at| step_timings.get(*at));
        let until = next.map_or(timing.ended_ms(), |next| timing.ended_ms().min(next.began_ms));
        sum = sum.saturating_add(until.saturating_sub(timing.began_ms));
    }
    (total, sum)
}

/// What is said of a timing beside its bar: how it stands, and where there is room what released it.
fn words(timing: &StepTiming, is_wide: bool) -> String {
    let state = match timing.state {
        ConditionState::Failed | ConditionState::Degraded => "FAILED",
        ConditionState::Waiting | ConditionState::Pending => "not done",
        ConditionState::Ok => "",
    };
    let after = timing.after.last().filter(|_| is_wide).map(|need| format!("after {}", escaped(need))).unwrap_or_default();
    let comma = if state.is_empty() || after.is_empty() { "" } else { ", " };
    [state, comma, after.as_str()].concat()
}

fn span(millis: u64) -> String {
    duration(Duration::from_millis(millis))
}

/// Where a moment lies on an axis of so many places.
fn place(millis: u64, total: u64, space: usize) -> usize {
    let space = u64::try_from(space).unwrap_or_default();
    let at = u128::from(millis) * u128::from(space) / u128::from(total.max(1));
    usize::try_from(at).unwrap_or_default()
}

/// Round moments for an axis, five beside the first at most.
fn ticks(total: u64) -> impl Iterator<Item = u64> {
    const STEPS: [u64; 20] = [
        1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000,
        1_800_000,
    ];
    let step = STEPS.into_iter().find(|step| total / step <= 5).unwrap_or(total / 5).max(1);
    (0..=5).map(move |tick| tick * step).take_while(move |at| *at <= total)
}

fn tick_label(millis: u64) -> String {
    match millis {
        0 => "0".to_owned(),
        1000..60_000 if millis.is_multiple_of(1000) => format!("{}s", millis / 1000),
        _ => span(millis),
    }
}

/// On a page that is narrower than this no row names its need.
const NARROW: usize = 70;

/// The page for a terminal of so many columns: a row a step, `#` on the critical path.
#[must_use]
pub fn page(title: &str, step_timings: &[StepTiming], width: usize) -> String {
    let width = width.clamp(40, 400);
    let path = critical_path(step_timings);
    let (total, sum) = sums(step_timings, &path);
    let longest = |texts: &dyn Fn(&StepTiming) -> usize| step_timings.iter().map(texts).max().unwrap_or_default();
    let names = longest(&|timing| escaped(&timing.step).chars().count()).min(width * 3 / 10);
    let is_wide = width >= NARROW;
    let details = longest(&|timing| words(timing, is_wide).chars().count()).min(width / 3);
    // Beside the bars: marker, name, seven columns of time, words, and what lies between them.
    let space = width.saturating_sub(2 + names + 1 + 1 + 7 + 2 + details);
    let mut out = format!("{}\n{:names$}   {}\n", escaped(title), "", axis(total, space));
    for (at, timing) in step_timings.iter().enumerate() {
        let (marker, ink) = if path.contains(&at) { ('#', "#") } else { (' ', "=") };
        let (from, to) = bar(timing, total, space);
        let bar = format!("{}{}", " ".repeat(from), if timing.took_ms == 0 { "|".to_owned() } else { ink.repeat(to - from) });
        let name = shortened(&escaped(&timing.step), names);
        let line = format!(
            "{marker} {name:names$} {bar:space$} {:>7}  {}",
            span(timing.took_ms),
            shortened(&words(timing, is_wide), details)
        );
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out.push_str(&format!("total {}, critical path (#) {}:\n", span(total), span(sum)));
    let steps = path.iter().filter_map(|at| step_timings.get(*at));
    let steps = steps.map(|timing| format!("{} {}", shortened(&escaped(&timing.step), width - 16), span(timing.took_ms)));
    let mut line = String::from(" ");
    for (number, step) in steps.enumerate() {
        let arrow = if number == 0 { " " } else { " > " };
        if number > 0 && line.chars().count() + arrow.len() + step.chars().count() > width {
            out.push_str(&line);
            out.push('\n');
            line = String::from("   ");
        }
        line.push_str(arrow);
        line.push_str(&step);
    }
    out.push_str(&line);
    out.push('\n');
    out
}

/// From where to where a bar goes; one place at least.
fn bar(timing: &StepTiming, total: u64, space: usize) -> (usize, usize) {
    let from = place(timing.began_ms, total, space).min(space.saturating_sub(1));
    (from, place(timing.ended_ms(), total, space).clamp(from + 1, space.max(from + 1)))
}

fn axis(total: u64, space: usize) -> String {
    let mut line = String::new();
    for at in ticks(total) {
        let (column, label) = (place(at, total, space), tick_label(at));
        if line.is_empty() || (line.len() < column && column + label.len() <= space + 8) {
            line.push_str(&" ".repeat(column - line.len()));
            line.push_str(&label);
        }
    }
    line
}

/// Sizes of the picture, in its own units.
const WIDTH: usize = 1000;
const LEFT: usize = 250;
const SPACE: usize = 460;
const TOP: usize = 64;
const ROW: usize = 22;

/// Its colours, for a light ground and a dark one.
const STYLE: &str = "text{font:13px monospace;fill:#1b1f24}.g{fill:#fff}.l{stroke:#d0d7de}.b{fill:#4c7fd6}.c{fill:#c2410c}\
.f{stroke:#1b1f24;stroke-width:2;stroke-dasharray:4 2}.h{stroke:#c2410c;stroke-width:2}.m{font-weight:bold}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.g{fill:#15181d}.l{stroke:#3d444d}.b{fill:#6ea0ff}.c{fill:#ff9a57}\
.f{stroke:#e6edf3}.h{stroke:#ff9a57}}";

/// The picture: SVG that needs nothing else. The critical path has another colour, thick bars that are joined, bold names.
#[must_use]
pub fn svg(title: &str, step_timings: &[StepTiming]) -> String {
    let path = critical_path(step_timings);
    let (total, sum) = sums(step_timings, &path);
    let height = TOP + step_timings.len() * ROW + 40;
    let sums = format!("total {}, critical path (thick) {}", span(total), span(sum));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n\
         <title>{}: {sums}</title>\n<style>{STYLE}</style>\n<rect class=\"g\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
        text(title)
    );
    label(&mut out, (10, 24), "m", title);
    let bottom = height - 32;
    for at in ticks(total) {
        let x = LEFT + place(at, total, SPACE);
        out.push_str(&format!("<path class=\"l\" d=\"M{x} {TOP}V{bottom}\"/>\n"));
        label(&mut out, (x, TOP - 8), "", &tick_label(at));
    }
    let middle = |row: usize| TOP + row * ROW + ROW / 2;
    // Below the bars: from the end of one to the beginning of the next.
    for pair in path.windows(2) {
        let [one, next] = pair else { continue };
        let x = step_timings.get(*next).map_or(LEFT, |timing| LEFT + bar(timing, total, SPACE).0);
        out.push_str(&format!("<path class=\"h\" d=\"M{x} {}V{}\"/>\n", middle(*one), middle(*next)));
    }
    for (row, timing) in step_timings.iter().enumerate() {
        let critical = path.contains(&row);
        let (from, to) = bar(timing, total, SPACE);
        let needs: Vec<String> = timing.after.iter().map(|need| text(need)).collect();
        out.push_str(&format!(
            "<g><title>{}: began after {}, took {}; {}{}</title>\n",
            text(&timing.step),
            span(timing.began_ms),
            span(timing.took_ms),
            if needs.is_empty() { "waited for nothing".to_owned() } else { format!("waited for {}", needs.join(", ")) },
            if critical { "; on the critical path" } else { "" }
        ));
        label(&mut out, (10, middle(row) + 4), if critical { "m" } else { "" }, &shortened(&timing.step, 29));
        let (class, high) = if critical { ("c", 14) } else { ("b", 6) };
        let failed = if timing.state == ConditionState::Failed { " f" } else { "" };
        let (x, y, wide) = (LEFT + from, middle(row) - high / 2, to - from);
        out.push_str(&format!("<rect class=\"{class}{failed}\" x=\"{x}\" y=\"{y}\" width=\"{wide}\" height=\"{high}\"/>\n"));
        let text = format!("{} {}", span(timing.took_ms), words(timing, true));
        label(&mut out, (LEFT + SPACE + 10, middle(row) + 4), "", &shortened(text.trim_end(), 34));
        out.push_str("</g>\n");
    }
    label(&mut out, (10, height - 12), "m", &sums);
    out.push_str("</svg>\n");
    out
}

fn label(out: &mut String, (x, y): (usize, usize), class: &str, words: &str) {
    out.push_str(&format!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>\n", text(words)));
}

/// Text as XML has it, in an attribute too.
fn text(plain: &str) -> String {
    let mut out = String::new();
    for c in escaped(plain).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML has no such characters, however they are written.
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
