// One round of questions to the top level and the own leaves; what does not answer in time is left
// out.

#include "frontend/ui/told_domains.h"

#include <set>
#include <string>
#include <utility>

#include "frontend/ui/gathered_answers.h"

namespace kvatlas {

std::vector<Domain> ToldDomains(const Frontend& frontend, PeerAsker* asker, Duration deadline) {
  std::vector<std::pair<StatsOf, std::string>> peers;
  for (const std::string& address : frontend.hierarchies().Addresses())
    peers.emplace_back(StatsOf::kNode, address);
  for (const ConfiguredLeaf& leaf : frontend.leaves())
    peers.emplace_back(StatsOf::kLeaf, leaf.address);
  if (peers.size() > kTellersMax) peers.resize(kTellersMax);
  if (peers.empty()) return {};
  GatheredAnswers<v1::StatsResponse> answers(peers.size());
  for (size_t i = 0; i < peers.size(); ++i)
    asker->Ask(peers[i].first, peers[i].second, deadline, answers.Slot(i));
  std::set<Domain> domains;
  for (const absl::StatusOr<v1::StatsResponse>& answer : answers.Wait()) {
    if (!answer.ok()) continue;
    for (const v1::DomainStats& stats : answer->domains())
      domains.insert({.model = stats.domain().model(), .tenant = stats.domain().tenant()});
  }
  return {domains.begin(), domains.end()};
}

}  // namespace kvatlas
