"""The 200 characters that are the glyph classes."""

from __future__ import annotations

# Chosen so that no two look alike. Characters that all faces hold were compared in pairs (correlation of
# blurred, size-normalised masks over all faces, relative rotations up to 25 degrees, two aspect ratios) and
# taken from the scripts in turn if they stayed below a threshold to all before. So there is one of "A", Greek
# "Α" and Cyrillic "А", one of "o", "O" and "0", and so on. The order is part of the data set.
_DIGITS = "0123456789"
_LATIN = "GJPQRWZfhkqrtuvðþŋœƱƺɘʘ"
_GREEK = "ΑΔΚΜΞΣβζλμξστφωϗϘϚϜϞϠ"
_CYRILLIC = "ЂЉЋДЖЛНУФХЦЫЬЭЮачшщяєњћџ"
_ARMENIAN = "ԲԵԶԸԹԻԽԾԿՀՁՂՃՄՆՇՉՊՌՎՐՒՔՖէմչջւփքֆ"
_GEORGIAN = "ადელორფქშჩძხჯჰ"
_SYMBOLS = "#%&@¢¥®±¶¾₴₹↑↙↩↬↭↰↹⇧⇵√∠∬≠⊆⊇⊎⊓⊖⊞⊢⊤⌂⌥⏏╪□▣▦▲▶▽◈○●◐◑◒◓◔◕◢◣◤◩◫◬◰☀☼♀♁♄♇♢♣♤♧♪♫♬♭♮♯⟷"

#: Class ``c`` is the character ``CHARACTERS[c]``.
CHARACTERS: tuple[str, ...] = tuple(_DIGITS + _LATIN + _GREEK + _CYRILLIC + _ARMENIAN + _GEORGIAN + _SYMBOLS)
