#include "indexer/service/security/identity.h"
