//! Sentences about how a run ended, the same in every command: did it die of an out-of-memory error, and what is known of its rest?

use parkade_analysis::continuation::{Continuation, Doubt};
use parkade_analysis::ending::{AfterError, Ending};

use crate::terminal::output::count;
use crate::terminal::size::show_bytes;

/// How the run ended, with the evidence. `None` if no request was out of memory.
pub fn ending(ending: &Ending) -> Option<String> {
    match ending {
        Ending::NoError => None,
        Ending::Died(error) => {
            Some(format!("the run died of the out-of-memory error at entry {}: {}", error.entry, afterwards(error)))
        }
        Ending::Survived(error) => {
            Some(format!("the run survived the out-of-memory error at entry {}: {}", error.entry, afterwards(error)))
        }
    }
}

/// That a run which met so many errors goes on without a cure. `None` if it survived none.
pub fn goes_on(ending: &Ending, errors: u64) -> Option<String> {
    let met = count(errors, "out-of-memory error");
    matches!(ending, Ending::Survived(_))
        .then(|| format!("the program survives such errors: it went on after {met} in the recording"))
}

/// That a recording which lost its beginning had more reserved before its first entry than what is in it needs.
pub fn had_before(reserved_bytes: u64) -> String {
    format!(", although the run had reserved {} before its first entry", show_bytes(reserved_bytes))
}

fn afterwards(error: &AfterError) -> String {
    let AfterError { served, served_bytes, telling_bytes, .. } = *error;
    if let Some(entry) = error.asked_again_at {
        return format!("what had failed was requested again and served at entry {entry}");
    }
    if served == 0 {
        return "nothing was allocated after it".to_owned();
    }
    let allocated = format!("{} after it, {} in all", count(served, "allocation"), show_bytes(served_bytes));
    if error.went_on() {
        format!("{allocated}, so it went on")
    } else if served_bytes >= error.goes_on_bytes {
        let repeated = show_bytes(served_bytes - telling_bytes);
        format!(
            "{allocated}, but {repeated} of it again and again in places that it had not come to before, as error handling does"
        )
    } else {
        format!("only {allocated}")
    }
}

/// What is estimated of the rest of a run that died.
pub fn rest(continuation: Option<&Continuation>) -> String {
    match continuation {
        None => "what it would have done next is not in the file".to_owned(),
        Some(rest) => format!(
            "what it would have done next is not in the file; it is estimated from the {} before: the rest of the step that failed, \
             then {} more",
            count(rest.steps, "step"),
            rest.more_steps
        ),
    }
}

/// Why the estimate, or the lack of one, does not tell whether the program fits.
pub fn doubt(doubt: Doubt) -> String {
    match doubt {
        Doubt::NoSteps => "the program was never at this point before, so nothing is known of what follows".to_owned(),
        Doubt::FewSteps(steps) => {
            format!("{} came before the one that failed, too few to tell what later ones need", count(steps, "step"))
        }
        Doubt::NotSteady => "its steps do not leave memory as they found it, so later ones may need more".to_owned(),
        Doubt::Growing => "each of its steps needed more than the one before, so later ones will need more still".to_owned(),
        Doubt::Margin => {
            "the largest of its steps is one of a kind, and too little would be left free for a larger one".to_owned()
        }
    }
}
