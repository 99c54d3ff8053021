# SPDX-License-Identifier: Apache-2.0
"""How text is normalised before wordpieces are looked up, and the special tokens."""

from typing import NamedTuple

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)

MAX_CHARS_PER_WORD = 200  # A longer word is [UNK].


class TokenizerConfig(NamedTuple):
    """How text is normalised before wordpieces are looked up.

    Attributes:
        do_lower_case: lower-case the text.
        strip_accents: decompose characters and drop the accents. The original does so
            only when it lower-cases too; a cased tokenizer ignores this setting.
    """

    do_lower_case: bool = True
    strip_accents: bool = True

    def equivalent(self, other: "TokenizerConfig") -> bool:
        """Whether both give the same tokens for every text."""
        if not self.do_lower_case:
            return not other.do_lower_case
        return tuple(self) == tuple(other)

    def __str__(self) -> str:
        if not self.do_lower_case:
            return "cased"
        return "uncased, accents " + ("stripped" if self.strip_accents else "kept")
