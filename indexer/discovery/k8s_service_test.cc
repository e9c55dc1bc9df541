#include "indexer/discovery/k8s_service.h"

#include <gtest/gtest.h>

#include <string>

namespace kvatlas {
namespace {

TEST(K8sServiceTest, NamesAServiceANamespaceAndAPort) {
  EXPECT_EQ(*K8sService::Parse("k8s:leaf-a"), (K8sService{.service = "leaf-a"}));
  EXPECT_EQ(*K8sService::Parse("k8s:leaf-a.llm"),
            (K8sService{.service = "leaf-a", .name_space = "llm"}));
  EXPECT_EQ(*K8sService::Parse("k8s:leaf-a:7410"), (K8sService{.service = "leaf-a", .port = 7410}));
  EXPECT_EQ(*K8sService::Parse("k8s:leaf-a.llm:65535"),
            (K8sService{.service = "leaf-a", .name_space = "llm", .port = 65535}));
  EXPECT_EQ(*K8sService::Parse("k8s:vllm.llm:http-api"),
            (K8sService{.service = "vllm", .name_space = "llm", .port_name = "http-api"}));
}

TEST(K8sServiceTest, RefusesWhatKubernetesWould) {
  for (const char* text : {"",
                           "k8s:",
                           "leaf",
                           "dns:leaf:1",
                           "k8s:.llm",
                           "k8s:leaf.",
                           "k8s:leaf:",
                           "k8s:leaf:0",
                           "k8s:leaf:65536",
                           "k8s:leaf:Port",
                           "k8s:leaf:a-port-name-too-long",
                           "k8s:Leaf",
                           "k8s:-leaf",
                           "k8s:leaf-",
                           "k8s:leaf.llm.svc",
                           "k8s:leaf/x",
                           "k8s:leaf?x=1",
                           "k8s:leaf:1:2",
                           "k8s:leaf.llm svc",
                           "k8s:leaf:7410_x"}) {
    const auto parsed = K8sService::Parse(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_NE(parsed.status().message().find("k8s:SERVICE[.NAMESPACE][:PORT]"),
              absl::string_view::npos)
        << parsed.status();
  }
  EXPECT_FALSE(K8sService::Parse("k8s:" + std::string(64, 'a')).ok());
  EXPECT_TRUE(K8sService::Parse("k8s:" + std::string(63, 'a')).ok());
}

}  // namespace
}  // namespace kvatlas
