// The arrays of a round in its one buffer, in the order and at the places of ramet/round.py.
#pragma once

#include <cstdint>

namespace ramet {

enum Field {
    kTokens, kPositions, kWhole, kStarts, kLengths, kParents, kBlocks, kContexts, kOrigins, kAnchors,
    kContextPages, kContextOffsets, kContextLengths, kContextForks, kContextForkOffsets,
    kPieceStarts, kPieceLengths, kPieceParents, kPieceFrom, kPieceTo, kKeptRows, kKeptSlots,
    kEveryRows, kEveryBounds, kReadRows, kReadBounds, kReadIndex, kColumns, kOffsets, kNormalize,
    kFields
};

// The block of a segment whose rows all see each other: WHOLE of ramet/tree.py.
constexpr int32_t kWholeBlock = 1 << 30;

// int32 places: where an array may begin.
constexpr int kAligned = 4;

inline int32_t aligned(int32_t at) { return (at + kAligned - 1) / kAligned * kAligned; }

struct Span {
    int32_t begin, end;
    int32_t size() const { return end - begin; }
};

}  // namespace ramet
