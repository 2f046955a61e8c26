package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
)

// RulesHash stands for the settings that decide what is accepted. What was rejected by other ones
// must be decided again, and so what was confirmed of a relay by other ones must be asked for
// again. The order within a list makes no difference.
func (s Settings) RulesHash() string {
	lists := [][]string{
		s.RepositoryWhitelist, s.RepositoryBlacklist, s.EventBlacklist, s.ArchiveWhitelist, s.ArchiveServices,
	}
	for i, list := range lists {
		lists[i] = slices.Sorted(slices.Values(list))
	}
	hash := sha256.Sum256(fmt.Appendf(nil, "%q %q %v", lists, s.Address(),
		[]bool{s.ArchiveAll, s.ContributorPRs, s.IgnoreDeletions}))
	return hex.EncodeToString(hash[:8])
}
