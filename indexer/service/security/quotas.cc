#include "indexer/service/security/quotas.h"
