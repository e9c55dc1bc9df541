// A gateway with the frontend in it, in C++. Run beside a leaf with workers: example_gateway
// 127.0.0.1:7410 MODEL

#include <cstdio>

#include "frontend/cluster_client/grpc_lookup_clients.h"
#include "frontend/router/frontend.h"

int main(int argc, char** argv) {
  kvatlas::GrpcCellFinder cells;
  kvatlas::GrpcOverlapFinder overlaps;
  const char* leaf = argc > 1 ? argv[1] : "127.0.0.1:7410";
  kvatlas::Frontend frontend({.leaves = {{.cell = "c", .address = leaf}}}, &cells, &overlaps,
                             &kvatlas::Clock::Real());

  kvatlas::RouteInput prompt;
  prompt.domain.model = argc > 2 ? argv[2] : "example-model";
  for (uint32_t i = 0; i < 33; ++i) prompt.tokens.push_back(1000 + i);
  prompt.deadline = std::chrono::seconds(10);
  const absl::StatusOr<kvatlas::RouteResult> route = frontend.Route(prompt);
  if (!route.ok()) return std::fprintf(stderr, "%s\n", route.status().ToString().c_str()), 1;
  std::printf("%s %u\n", route->worker.name.c_str(), route->overlap_blocks);
  frontend.Report(route->decision_id, {.finished = true});
}
