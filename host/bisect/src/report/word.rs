//! The verdict of a search.

use schemars::JsonSchema;
use serde::Serialize;

/// The verdict of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub enum Word {
    /// Culprits were found and confirmed.
    #[serde(rename = "found")]
    Found,
    /// Both ends run the same code.
    #[serde(rename = "ends_agree_same_code")]
    SameCode,
    /// Both ends pass the oracle.
    #[serde(rename = "ends_agree_by_oracle")]
    OracleAgrees,
    /// No patch is guilty: the good end fails too, and a setting heals it.
    #[serde(rename = "no_patch")]
    NoPatch,
    /// The good end fails, and no setting that was tried heals it.
    #[serde(rename = "good_fails")]
    GoodFails,
    /// A failing set was found, or none, and the question stays open.
    #[serde(rename = "inconclusive")]
    Inconclusive,
    /// The oracle could not be asked.
    #[serde(rename = "oracle_broken")]
    OracleBroken,
    /// No run, or no time, was left.
    #[serde(rename = "budget")]
    BudgetSpent,
    /// The culprit fails in another way than the bad end.
    #[serde(rename = "other_signature")]
    SecondSignature,
}

impl Word {
    /// The verdict as programs read it; the same in every format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::SameCode => "ends_agree_same_code",
            Self::OracleAgrees => "ends_agree_by_oracle",
            Self::NoPatch => "no_patch",
            Self::GoodFails => "good_fails",
            Self::Inconclusive => "inconclusive",
            Self::OracleBroken => "oracle_broken",
            Self::BudgetSpent => "budget",
            Self::SecondSignature => "other_signature",
        }
    }

    /// The verdict as people read it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Found => "culprit found and confirmed",
            Self::SameCode => "ends agree: same code",
            Self::OracleAgrees => "ends agree by this oracle",
            Self::NoPatch => "no patch is guilty: a setting is",
            Self::GoodFails => "the good end fails",
            Self::Inconclusive => "inconclusive",
            Self::OracleBroken => "the oracle is broken",
            Self::BudgetSpent => "budget spent",
            Self::SecondSignature => "a second fault: the culprit fails in another way than the bad end",
        }
    }

    /// Exit code of the command: 0 found, or a setting that heals; 1 nothing to find; 3 inconclusive; 4 the good end
    /// fails; 5 oracle broken; 6 budget spent; 10 another signature. (2 is wrong usage.)
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Found | Self::NoPatch => 0,
            Self::SameCode | Self::OracleAgrees => 1,
            Self::Inconclusive => 3,
            Self::GoodFails => 4,
            Self::OracleBroken => 5,
            Self::BudgetSpent => 6,
            Self::SecondSignature => 10,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Word;

    #[test]
    fn programs_and_json_read_the_same_word() {
        use Word::*;
        for word in [
            Found,
            SameCode,
            OracleAgrees,
            NoPatch,
            GoodFails,
            Inconclusive,
            OracleBroken,
            BudgetSpent,
            SecondSignature,
        ] {
            assert_eq!(serde_json::to_value(word).unwrap(), word.as_str());
        }
    }
}
