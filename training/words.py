"""Everyday words that the tasks do not use, for the vocabulary."""

from __future__ import annotations

COMMON = (
    "about", "above", "after", "again", "against", "all", "also", "always", "am", "among", "and", "another", "any",
    "are", "around", "as", "ask", "at", "away", "back", "be", "because", "been", "before", "began", "being",
    "below", "best", "better", "between", "both", "business", "but", "by", "came", "can", "case", "child", "come",
    "could", "country", "course", "could", "day", "did", "different", "do", "does", "done", "down", "during",
    "each", "early", "end", "enough", "even", "ever", "every", "example", "eye", "fact", "far", "feel", "few",
    "first", "follow", "for", "found", "from", "gave", "general", "get", "give", "go", "going", "good", "got",
    "government", "great", "group", "had", "hand", "has", "have", "he", "head", "help", "her", "here", "high",
    "him", "his", "home", "house", "how", "however", "idea", "if", "important", "in", "into", "is", "issue", "it",
    "its", "just", "keep", "kind", "knew", "know", "large", "last", "late", "later", "learn", "least", "leave",
    "left", "less", "let", "life", "like", "line", "little", "long", "look", "made", "man", "many", "may", "me",
    "mean", "men", "might", "mind", "money", "more", "most", "mother", "much", "must", "my", "name", "near",
    "never", "next", "night", "not", "nothing", "now", "number", "of", "off", "often", "old", "on", "once", "one",
    "only", "or", "other", "our", "out", "over", "own", "page", "part", "people", "perhaps", "person", "place",
    "point", "possible", "power", "present", "problem", "public", "question", "quite", "rather", "real", "really",
    "right", "room", "said", "same", "saw", "say", "school", "second", "see", "seem", "several", "shall", "she",
    "should", "show", "side", "since", "small", "so", "some", "something", "still", "story", "such", "system",
    "take", "tell", "than", "that", "the", "their", "them", "then", "there", "these", "they", "thing", "think",
    "this", "those", "though", "thought", "three", "through", "time", "to", "today", "together", "too", "took",
    "two", "under", "until", "up", "upon", "us", "use", "very", "want", "was", "water", "way", "we", "week", "well",
    "went", "were", "what", "when", "where", "which", "while", "who", "why", "will", "with", "without", "woman",
    "word", "work", "world", "would", "write", "year", "yes", "yet", "you", "young", "your",
)  # fmt: skip
