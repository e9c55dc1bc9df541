#include "indexer/index/conformance_cases.h"

#include "indexer/index/index_test_util.h"

namespace kvatlas {
namespace {

constexpr unsigned kAny = 0;
constexpr unsigned kExact = kHoles | kOrphans | kPlaces;

constexpr ConformanceCase kCases[] = {
    // ---- Storing and finding ----
    {"NothingIsHeldAtFirst", kAny, "find 1..4 -> none; blocks -> 0"},
    {"AStoredSequenceIsFoundWhole", kAny, "0 stores 1,2,3; find 1,2,3 -> 0:3"},
    {"OverlapIsTheNumberOfLeadingBlocks", kExact,
     "0 stores 1..8; 1 stores 1..8[:4]; 2 stores 101..108; 3 stores 1..8[1:];"
     "find 1..8 -> 0:8 1:4; find 1..3 -> 0:3 1:3"},
    {"APromptThatLeavesTheSequenceCountsUpToThere", kAny,
     "0 stores 1,2,3; find 1,2,999 -> 0:2; find 1..6 -> 0:3"},
    {"AnUnknownOrEmptyPromptFindsNone", kAny,
     "find 1,2 -> none; 0 stores 1,2,3; find 999,998 -> none; find - -> none;"
     "find 1,2/none -> none"},
    {"APromptThatBeginsInTheMiddleFindsNone", kAny,
     "0 stores 1,2,3; find 2,3 -> none | nested_map inverted 0:2; 0 stores 1..5[3:];"
     "find 4,5 -> none | nested_map inverted 0:2"},
    {"RemovingEverythingLeavesNothing", kAny,
     "0 stores 1,2,3; 0 loses 1,2,3; find 1,2,3 -> none; blocks -> 0; holdings -> 0"},
    {"HoldersThatShareAHeadPartWhereTheyDiffer", kAny,
     "0 stores 1,2; 1 stores 1,3; find 1 -> 0:1 1:1; find 1,2 -> 0:2 1:1; find 1,3 -> 0:1 1:2"},
    {"SequencesThatShareAHeadShareItsBlocks", kAny,
     "0 stores 1..4+11..13; 1 stores 1..4+21..23; find 1..4+11..13 -> 0:7 1:4; blocks -> 10;"
     "holdings -> 14"},
    {"RemovingAHolderLeavesTheOthers", kAny,
     "0 stores 1,2,3; 1 stores 1,2,3; 0 goes; find 1,2,3 -> 1:3; 1 loses 500,501;"
     "find 1,2,3 -> 1:3; 0 comes"},
    {"AClearedHolderCanStoreAgain", kAny,
     "0 stores 1,2,3; 1 stores 1,2,3; 0 clears; find 1,2,3 -> 1:3; 0 stores 4,5; find 4,5 -> 0:2;"
     "find 1,2,3 -> 1:3"},
    {"SequencesOfAHolderDoNotMix", kAny,
     "0 stores 1,2,3; 0 stores 100,101; find 1,2,3 -> 0:3; find 100,101 -> 0:2;"
     "find 1,100 -> 0:1 | nested_map inverted 0:2; find 100,2 -> 0:1 | nested_map inverted 0:2"},
    {"ASequenceGoesOnBehindItsParent", kAny,
     "0 stores 1,2,3; 0 stores 1..5[3:]; find 1..5 -> 0:5; find 1,2,3 -> 0:3"},
    {"AnIndexMayGoAsItIs", kAny, "0 stores 1..300; 1 stores 1..100"},
    {"EmptyEventsAreFine", kAny,
     "0 stores -; 0 loses -; 0 clears/none; 0 clears; blocks -> 0; heard -> 0"},

    // ---- Equal content elsewhere ----
    {"EqualContentElsewhereIsNotTheSame", kAny,
     "0 stores 1,2,3,4; 0 stores 5,9; find 1,9,3 -> 0:1 | nested_map inverted 0:3"},
    {"ARepeatedBlockCountsOnce", kAny, "0 stores 7; find 7,7,7 -> 0:1 | nested_map inverted 0:3"},
    {"OtherContentFillsNoHole", kAny,
     "0 stores 1,2,3; 0 stores 8,2; 0 loses 1,2,3@1;"
     "find 1,2,3 -> 0:1 | nested_map inverted positional positional_binary host_bitmap 0:3"},
    {"HoldersOfOtherSequencesWithThisContentAreNotCounted", kAny,
     "0 stores 1,2; 1 stores 1,3; 1 stores 4,2; find 1,2 -> 0:2 1:1 | nested_map inverted 0:2 1:2"},
    {"SequencesThatMeetAgainInContentDoNotMeetInOverlap", kAny,
     "0 stores 1,2,3,4; 1 stores 1,9,3,4; find 1,2,3,4 -> 0:4 1:1; find 1,9,3,4 -> 0:1 1:4;"
     "1 stores 2; find 1,2,3,4 -> 0:4 1:1 | nested_map inverted 0:4 1:4; 1 loses 2;"
     "0 loses 1,2,3,4@3,2,1; find 1,9,3,4 -> 0:1 1:4; find 1,2,3,4 -> 0:1 1:1"},
    {"TheSameContentMayStandAnywhereAndRepeat", kAny,
     "0 stores 7*200; 1 stores 8,7,7,7; find 7*250 -> 0:200 | nested_map inverted 0:250 1:250;"
     "find 8,7,7,7,7 -> 1:4 | nested_map inverted 1:5"},

    // ---- The same event again: sets, not counts ----
    {"AReplayedStoreChangesNothing", kAny,
     "0 stores 1,2,3; 1 stores 1,2,4; 0 stores 1,2,3,5[3:]; heard -> 7; 0 stores 1,2,3;"
     "1 stores 1,2,4; 0 stores 1,2,3,5[3:]; 0 stores 1,2,3,5; heard -> 0;"
     "find 1,2,3,5 -> 0:4 1:2; 0 loses 1,2,3,5; find 1,2,3,5 -> 1:2; blocks -> 3"},
    {"AReplayedRemovalChangesNothing", kAny,
     "0 stores 1,2,3; 1 stores 1,2,3; 0 loses 1,2,3[2:]; find 1,2,3 -> 0:2 1:3; heard -> 7;"
     "0 loses 1,2,3[2:]; 0 loses 1,2,3[2:]; find 1,2,3 -> 0:2 1:3; heard -> 0"},
    {"RemovingWhatIsNotHeldTakesNothingFromAnybody", kAny,
     "0 stores 1,2,3; 1 stores 7,8; heard -> 5; 1 loses 1,2,3; 0 loses 1,2,3/host;"
     "0 loses 500,501; heard -> 0; find 1,2,3 -> 0:3; find 7,8 -> 1:2"},
    {"ABlockTwiceInOneRemovalGoesOnce", kAny,
     "0 stores 1; 0 loses 1@0,0; heard -> 2; 0 holds -> 0; blocks -> 0"},
    {"AReplayWithHolesChangesNothing", kExact,
     "0 stores 1..50; 0 stores 1..20+100..102; 0 loses 1..50@7,8; heard -> 55;"
     "0 stores 1..50[9:]; 0 stores 1..50[:7]; 0 loses 1..50@8,7; 0 loses 1..50/host; heard -> 0"},

    // ---- Removal ----
    {"RemovingTheLastBlockShortensTheOverlap", kAny,
     "0 stores 1,2,3; 0 loses 1,2,3[2:]; find 1,2,3 -> 0:2; find 1,2 -> 0:2"},
    {"AHoleEndsTheOverlap", kAny,
     "0 stores 1..8; 0 loses 1..8@3;"
     "find 1..8 -> 0:3 | positional positional_binary host_bitmap 0:8; 0 loses 1..8@0;"
     "find 1..8 -> none"},
    {"WhatLiesBehindAHoleCountsAgainWhenItIsFilled", kAny,
     "0 stores 1..5; 0 loses 1..5@2;"
     "find 1..5 -> 0:2 | positional positional_binary host_bitmap 0:5; 0 stores 1..5[2:3];"
     "find 1..5 -> 0:5 | radix actor 0:3; 0 holds -> 5"},
    {"WhatIsStoredAgainBehindAHoleComesBackWithAllBelow", kAny,
     "0 stores 1..5; 0 loses 1..5@2; 0 stores 1..5[2:4]; find 1..5 -> 0:5"},
    {"ABlockThatAnotherHolderKeepsIsNoHoleForGood", kAny,
     "0 stores 1..5; 1 stores 1..5; 0 loses 1..5@2;"
     "find 1..5 -> 0:2 1:5 | positional positional_binary host_bitmap 0:5 1:5;"
     "0 stores 1..5[2:3]; find 1..5 -> 0:5 1:5"},
    {"AStoreBehindAHoleCountsOnceTheHoleIsFilled", kAny,
     "0 stores 1..5; 0 loses 1..5@2; 0 stores 1..6[5:]; 0 stores 1..5[2:3]; 0 holds -> 6;"
     "find 1..6 -> 0:6 | radix actor 0:3"},
    {"AStoreAfterAHoleIsKept", kHoles | kOrphans,
     "0 stores 1..4[:3]; 0 loses 1..4@2; 0 stores 1..4[3:]; 0 stores 1..4[2:3];"
     "find 1..4 -> 0:4 | radix actor concurrent_radix 0:3"},
    {"TwoHolesHealInAnyOrder", kHoles,
     "0 stores 1..8; 0 loses 1..8@3,0; 0 stores 1; find 1..8 -> 0:3; 0 stores 1..8[3:4];"
     "find 1..8 -> 0:8"},
    {"EveryOneOfSixBlocksMayGoFirst", kHoles,
     "0 stores 1..4; 0 stores 1..6[4:]; 1 stores 1..6; 0 loses 1..6@0; find 1..6 -> 1:6;"
     "0 loses 1..6@1; find 1..6 -> 1:6; 0 loses 1..6@2; find 1..6 -> 1:6; 0 loses 1..6@3;"
     "find 1..6 -> 1:6; 0 loses 1..6@4; find 1..6 -> 1:6; 0 loses 1..6@5; find 1..6 -> 1:6;"
     "holdings -> 6"},
    {"ChildrenRemovedAfterTheirParentAreStillFoundByName", kAny,
     "0 stores 1..5; 0 loses 1..5@1; 0 loses 1..5@2; 0 loses 1..5@0; 0 loses 1..5@4;"
     "0 loses 1..5@3; find 1..5 -> none; blocks -> 0; holdings -> 0"},
    {"TheOrderInsideOneRemovalDoesNotMatter", kAny,
     "0 stores 1..8; 1 stores 1..8; 2 stores 1..8; 0 loses 1..8@3,4,5,6,7;"
     "1 loses 1..8@7,6,5,4,3; 2 loses 1..8@5,3,7,4,6; find 1..8 -> 0:3 1:3 2:3"},
    {"HolesHealIndependently", kHoles,
     "0 stores 1..40; 1 stores 1..15+500..504; 0 loses 1..40@10,20; find 1..40 -> 0:10 1:15;"
     "0 stores 1..40[20:21]; find 1..40 -> 0:10 1:15; 0 stores 1..40[10:11];"
     "find 1..40 -> 0:40 1:15; 0 loses 1..40@20,10; 0 stores 1..40[10:11];"
     "find 1..40 -> 0:20 1:15"},
    {"ADescendantOfALostBlockIsFoundAgainWhenTheBlockIs", kExact,
     "0 stores 1..40; 0 stores 1..20+101..140[20:]; 0 loses 1..40@10,19;"
     "0 loses 1..20+101..140@30; find 1..40 -> 0:10; find 1..20+101..140 -> 0:10;"
     "0 stores 1..20+101..140+201..205[60:]; 0 stores 1..40[19:20];"
     "find 1..20+101..140+201..205 -> 0:10; 0 stores 1..40[10:11]; find 1..40 -> 0:40;"
     "find 1..20+101..140+201..205 -> 0:30; 0 stores 1..20+101..140[30:31];"
     "find 1..20+101..140+201..205 -> 0:65"},

    // ---- Several holders of one head ----
    {"TwoTailsBehindASharedHead", kAny,
     "0 stores 1,2,3; 1 stores 1,2,3; 0 stores 1..6[3:]; 1 stores 1,2,3,7,8[3:];"
     "find 1..6 -> 0:6 1:3; find 1,2,3,7,8 -> 0:3 1:5"},
    {"ASecondHolderJoinsAndGoesFurther", kAny,
     "0 stores 1,2,3; 0 stores 1..6[3:]; 1 stores 1,2,3; 1 stores 1..6[3:]; 1 stores 1..9[6:];"
     "find 1..9 -> 0:6 1:9"},
    {"TheTailMayComeBeforeTheHead", kOrphans | kHoles,
     "0 stores 1..8[4:]; find 1..8 -> none; 0 holds -> 4; 0 stores 1..8[:4]; find 1..8 -> 0:8;"
     "1 stores 1..8[6:]; find 1..8 -> 0:8; 1 stores 1..8[:6]; find 1..8 -> 0:8 1:8"},
    {"TailsUnderAnUnknownParentCountOnceTheHeadComes", kOrphans | kHoles,
     "0 stores 1..12[8:]; 0 stores 1..12[4:6]; 1 stores 1..12[6:10]; find 1..12 -> none;"
     "1 stores 1..12[:6]; find 1..12 -> 1:10; 0 stores 1..12[:4]; find 1..12 -> 0:6 1:10;"
     "0 stores 1..12[6:8]; find 1..12 -> 0:12 1:10"},
    {"LosingASharedBlockTouchesOnlyTheHolderThatLostIt", kAny,
     "0 stores 1,2; 1 stores 1..4; 0 loses 1,2@1; find 1..4 -> 0:1 1:4"},
    {"AsManyHoldersAreNotTheSameHolders", kHoles,
     "0 stores 1..4; 1 stores 1,2; 0 loses 1,2@1; find 1..4 -> 0:1 1:2; 0 stores 1,2;"
     "1 loses 1,2@1; find 1..4 -> 0:4 1:1; 0 loses 1,2@1; find 1..4 -> 0:1 1:1;"
     "1 stores 1..4[1:3]; find 1..4 -> 0:1 1:3"},
    {"AnotherHoldersTailDoesNotStandIn", kHoles | kOrphans,
     "0 stores 1..64[:11]; 1 stores 1..64[20:];"
     "find 1..64 -> 0:11 | positional positional_binary 0:64"},
    {"WhatComesBackComesBackForOne", kExact,
     "0 stores 1..100; 0 loses 1..100@50; 0 stores 1..100[:50]; 0 stores 1..100[51:];"
     "1 stores 1..100[:50]; 1 stores 1..100[51:]; 2 stores 1..100[:50]; 2 stores 1..100[51:];"
     "3 stores 1..100[:50]; 3 stores 1..100[51:]; 3 stores 1..100[50:51];"
     "find 1..100 -> 0:50 1:50 2:50 3:100"},
    {"WhoeverGoesOnBehindWhatIsLeftGoesOnAlone", kExact,
     "0 stores 1..200[:6]; 1 stores 1..200[5:6]; 2 stores 1..200[5:6]; 2 stores 1..200[1:2];"
     "0 loses 1..200@1; 0 loses 1..200@2; 0 loses 1..200@3; 0 loses 1..200@4; 2 loses 1..200@1;"
     "0 loses 1..200@0; 0 loses 1..200@5; 2 loses 1..200@5; 0 stores 1..200[5:]; 0 holds -> 195;"
     "1 holds -> 1"},
    {"RanksOfAWorkerAreHoldersOfTheirOwn", kAny,
     "0 stores 1,2,3; 1 stores 1,2,3; 2 stores 1,2,3; 0 clears; find 1,2,3 -> 1:3 2:3; 1 goes;"
     "find 1,2,3 -> 2:3; 0 stores 1,2; find 1,2,3 -> 0:2 2:3"},

    // ---- Long sequences ----
    {"TheLastFifthOfALongSequenceGoes", kAny,
     "0 stores 1..100; 0 loses 1..100[79:]; find 1..100 -> 0:79"},
    {"TwentyContinuationsMakeOneSequence", kAny,
     "0 stores 1..10; 0 stores 1..20[10:]; 0 stores 1..30[20:]; 0 stores 1..40[30:];"
     "0 stores 1..50[40:]; 0 stores 1..60[50:]; 0 stores 1..61[60:]; 0 stores 1..63[61:];"
     "0 stores 1..64[63:]; 0 stores 1..200[64:]; find 1..200 -> 0:200; find 1..75 -> 0:75"},
    {"AThousandBlocks", kAny,
     "0 stores 1..1000; find 1..1000 -> 0:1000; find 1..500 -> 0:500;"
     "find 1..499+5000..5500 -> 0:499"},
    {"AStaircaseOfHolders", kAny,
     "0 stores 1..10; 1 stores 1..35; 2 stores 1..64; 3 stores 1..100;"
     "find 1..100 -> 0:10 1:35 2:64 3:100; 0 stores 1..20; 1 stores 1..33; 2 clears; 2 stores 1;"
     "find 1..100 -> 0:20 1:35 2:1 3:100"},
    {"ThreeHoldersPartAfterFortyBlocks", kAny,
     "0 stores 1..40+100..159; 1 stores 1..40+200..259; 2 stores 1..40+300..359;"
     "find 1..40+100..159 -> 0:100 1:40 2:40; find 1..40+200..259 -> 0:40 1:100 2:40;"
     "find 1..40+300..359 -> 0:40 1:40 2:100"},
    {"AnotherSequenceAfterAClear", kAny,
     "0 stores 1..100; 0 clears; 0 stores 1000..1099; find 1..100 -> none;"
     "find 1000..1099 -> 0:100"},
    {"AHoleThatIsJumpedOver", kAny,
     "0 stores 1..100; 0 loses 1..100@5;"
     "find 1..100 -> 0:5 | positional positional_binary host_bitmap 0:100"},
    {"ScanAndBisectionDifferWithHoles", kAny,
     "0 stores 1..64; 0 loses 1..64@5,32; find 1..64 -> 0:5 | positional_binary host_bitmap 0:32"},

    // ---- Counts, and what the holders hold ----
    {"AStoreThatBeginsInTheMiddleKeepsItsPlace", kOrphans,
     "0 stores 1..12[10:]; 0 holds -> 2; find 1..12 -> none"},
    {"ABlocksPlaceIsForgottenWithItsLastHolder", kOrphans,
     "0 stores 1..5; 1 stores 1..5[3:]; 0 clears; blocks -> 2; 1 holds -> 2; 1 clears;"
     "blocks -> 0; 1 holds -> 0"},
    {"CountsFollowEveryEventDownToNothing", kAny,
     "0 stores 1..5; 0 holds -> 5; 0 stores 1..5; 0 holds -> 5; 0 loses 1..5@2,3,4; 0 holds -> 2;"
     "0 stores 1..5[2:3]; 0 holds -> 3; 0 stores 1..5[3:]; 0 holds -> 5; find 1..5 -> 0:5;"
     "0 loses 1..5; 0 loses 1..5; 0 holds -> 0; holdings -> 0; blocks -> 0"},
    {"LateRemovalsAfterASplitBringEveryCountToNothing", kHoles,
     "0 stores 1..8; 1 stores 1..4+100..103; 0 loses 1..4; 1 loses 1..4; find 1..8 -> none;"
     "0 holds -> 4; 1 holds -> 4; 0 loses 1..8[4:]; 1 loses 1..4+100..103[4:]; holdings -> 0;"
     "blocks -> 0"},
    {"FirstAndLastHoldersAreTheDifferenceOfTwoDumps", kOrphans,
     "0 stores 1..20; 1 stores 1..10; 0 loses 1..20[5:15]; 1 stores 1..30; 0 clears;"
     "0 stores 1..30[25:]"},
    {"EventsAfterAClearSurviveIt", kAny,
     "0 stores 1..200; 1 stores 1..150; 0 clears; 0 stores 1..200[:20]; find 1..200 -> 0:20 1:150",
     5},
    {"TheDigestFollowsEveryTier", kOrphans,
     "0 stores 1..300; 0 stores 1..100/host; 0 stores 900..919[5:12]/disk;"
     "0 loses 1..300@1..299:3; 0 holds -> 240; 0 clears/device; 0 holds -> 107; 0 clears/disk;"
     "0 holds -> 100; 0 clears; 0 holds -> 0"},
    {"ABlockOfAnotherSequenceIsNotTheParentsFault", kAny,
     "0 stores 1..4; 1 stores 1,2; 1 stores 1,2,9; find 1..4 -> 0:4 1:2; find 1,2,9 -> 0:2 1:3"},

    // ---- Holders that come, go and are masked ----
    {"AReusedNumberStartsEmptyAndUnmasked", kAny,
     "0 stores 1,2,3; 1 stores 1,2,3; 1 is_masked; 1 goes; find 1,2,3 -> 0:3; 1 comes;"
     "1 holds -> 0; 1 stores 1,2; find 1,2,3 -> 0:3 1:2"},
    {"ARemovedHoldersNumberInheritsNothing", kHoles | kOrphans,
     "0 stores 1..100; find 1..100 -> 0:100; 1 holds -> 0; 1 stores 1..100[5:65];"
     "1 loses 1..100@15; 1 stores 50..59/host; 1 stores 1..100[:60]; 1 loses 1..100@10;"
     "1 is_masked; 1 goes; holdings -> 100; 1 comes; find 1..100 -> 0:100",
     20},
    {"AMaskedHolderIsLeftOutAndKeepsItsBlocks", kAny,
     "0 stores 1,2,3; 1 stores 1,2,3; 0 is_masked; find 1,2,3 -> 1:3; 0 holds -> 3;"
     "0 loses 1,2,3@2; 0 is_unmasked; find 1,2,3 -> 0:2 1:3"},
    {"AHeadThatIsGoneIsGone", kAny,
     "0 stores 1..4; 1 stores 1,2; 0 loses 1..4; find 1..4 -> 1:2; 0 stores 1;"
     "find 1..4 -> 0:1 1:2"},

    // ---- Tiers ----
    {"TiersAreUnitedBlockByBlock", kExact,
     "0 stores 1..6[:2]; 0 stores 1..6[2:4]/host; 0 stores 1..6[4:5]/disk; find 1..6 -> 0:5;"
     "find 1..6/device+host -> 0:4; find 1..6/device -> 0:2; find 1..6/host -> none"},
    {"TiersEvictIndependently", kAny,
     "0 stores 1,2; 0 stores 1,2/external; 0 loses 1,2; find 1,2 -> 0:2;"
     "find 1,2/device -> none; 0 loses 1,2@1/external; find 1,2 -> 0:1"},
    {"TiersAreKeptApart", kAny,
     "0 stores 1,2; 0 stores 1..4/host; tiers 1..4 -> 0:4:2,4,0,0; 0 clears/host;"
     "find 1..4 -> 0:2; 0 holds -> 2"},
    {"ClearTakesOnlyTheTiersNamed", kAny,
     "0 stores 1,2,3; 0 stores 1,2,3/host; 0 stores 1,2,3/disk; 1 stores 1,2,3;"
     "0 clears/device+host; find 1,2,3/device+host -> 1:3; find 1,2,3 -> 0:3 1:3; 0 clears;"
     "find 1,2,3 -> 1:3"},
    {"InterleavedTiersMakeOneOverlap", kAny,
     "0 stores 1..4[:2]; 0 stores 1..4[2:3]/host; 0 stores 1..4[3:4]; find 1..4 -> 0:4;"
     "find 1..4/host -> none; find 1..4/device -> 0:2 | positional positional_binary 0:4;"
     "0 holds -> 4; tiers 1..4 -> 0:4:2,0,0,0 | positional positional_binary 0:4:4,0,0,0;"
     "0 clears/device; 0 holds -> 1"},
    {"AnyOrderOfTiersAlongASequence", kExact,
     "0 stores 1..4[:1]/host; 0 stores 1..4[1:2]; 0 stores 1..4[2:3]/host;"
     "0 stores 1..4[3:4]/external; find 1..4 -> 0:4; find 1..4/device+host -> 0:3;"
     "find 1..4/host -> 0:1; find 1..4/device+external -> none; tiers 1..4 -> 0:4:0,1,0,0"},
    {"AHostTailGoesOnBehindADeviceHeadThatTheHostLacks", kExact,
     "0 stores 1..6[3:]/host; 0 stores 1..6[:3]; find 1..6 -> 0:6; find 1..6/host -> none;"
     "0 stores 1..6[2:3]/host; 0 loses 1..6[2:3]; find 1..6 -> 0:6; find 1..6/device -> 0:2;"
     "0 loses 1..6[:2]; find 1..6 -> none; 0 holds -> 4"},
    {"AHolderWithNothingOnTheDeviceAnswersFromItsOtherTiers", kAny,
     "0 stores 1..4; 1 stores 1..3/host; tiers 1..4 -> 0:4:4,0,0,0 1:3:0,3,0,0;"
     "find 1..4/device -> 0:4"},
    {"ATierByItselfIsAnsweredForThoseWhoAnswerTheMask", kAny,
     "0 stores 1..5/disk; 0 stores 1,2; 1 stores 1..5/disk; tiers 1..5/device -> 0:2:2,0,5,0"},
    {"ACopyInAnotherTierOutlivesTheFirst", kAny,
     "0 stores 1,2,3; 0 stores 1,2,3/host; 0 stores 1,2,3/host; 0 loses 1,2,3; find 1,2,3 -> 0:3;"
     "find 1,2,3/device -> none; 0 loses 1,2,3[1:]/host; find 1,2,3 -> 0:1"},
    {"ARemovalFromATierThatLacksTheBlockTakesNothing", kAny,
     "0 stores 1,2,3/host; 0 loses 1,2,3; 0 loses 1,2,3/disk; 0 loses 1,2,3/external;"
     "find 1,2,3 -> 0:3; heard -> 3"},
    {"AClearOfSomeTiersLeavesTheOthers", kAny,
     "0 stores 1..100; 0 stores 1..90/host; 0 stores 1..80/disk; 0 stores 1..70/external;"
     "1 stores 1..100; 1 stores 1..100/host; 1 stores 1..100/disk; 1 stores 1..100/external;"
     "0 clears/device+disk; tiers 1..100 -> 0:90:0,90,0,70 1:100:100,100,100,100; 0 clears/host;"
     "tiers 1..100 -> 0:70:0,0,0,70 1:100:100,100,100,100; 0 clears;"
     "tiers 1..100 -> 1:100:100,100,100,100"},
    {"AClearReachesEveryTierOfEverySequence", kOrphans,
     "0 stores 1..30; 0 stores 1..30/host; 0 stores 1..30/disk; 0 stores 1..30/external;"
     "0 stores 1000..1029[9:]/device; 0 stores 1000..1029[9:]/external;"
     "0 stores 2000..2029[19:]/disk; 0 stores 2000..2029[19:]/host; 0 holds -> 62; 0 clears;"
     "0 holds -> 0; blocks -> 0"},

    // ---- Bounds ----
    {"BlocksAreBounded", kPlaces | kOrphans,
     "0 stores 1..6 refused; find 1..6 -> 0:4; heard -> 4; 1 stores 1..4; find 1..4 -> 0:4 1:4;"
     "0 loses 1..6@0; 0 stores 1..6[5:] refused; 1 loses 1..6@0; 0 stores 1..6[5:]; blocks -> 4",
     1, 4},
    {"BlocksBeyondTheBoundAreRefusedAndKnownOnesAreNot", kAny,
     "0 stores 1..3; 1 stores 1..10 refused; blocks -> 5; find 1..10 -> 0:3 1:5; 0 stores 1..5;"
     "1 loses 1..5@4; 0 loses 1..5@4; 1 stores 77; blocks -> 5",
     1, 5},
    {"AHolderGoesOnAfterARefusal", kHoles,
     "0 stores 1..150 refused; find 1..150 -> 0:100; 0 stores 501..510 refused;"
     "0 loses 1..100@50; 0 stores 1..51[50:]; 0 stores 501..510 refused; find 1..150 -> 0:100;"
     "0 clears; 0 stores 501..600; find 501..600 -> 0:100; 0 clears",
     3, 100},
};

}  // namespace

std::span<const ConformanceCase> ConformanceCases() { return kCases; }

}  // namespace kvatlas
