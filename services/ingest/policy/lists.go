package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"tendril.dev/lib/config"
)

// Rules is a short form of the settings that decide what is accepted. What was rejected by other
// ones must be decided again. The order within a list makes no difference.
func Rules(s config.Policy) string {
	lists := [][]string{
		s.RepositoryWhitelist, s.RepositoryBlacklist, s.EventBlacklist, s.ArchiveWhitelist, s.ArchiveServices,
	}
	for i, list := range lists {
		lists[i] = slices.Sorted(slices.Values(list))
	}
	hash := sha256.Sum256(fmt.Appendf(nil, "%q %v %v", lists, s.ArchiveAll, s.ContributorPRs))
	return hex.EncodeToString(hash[:8])
}
