package repository

import "time"

// ParseEnded is parseEnded.
var ParseEnded = parseEnded

// Due decides whether housekeeping is due.
func Due(packs int, cruft bool, changed, last, now time.Time) bool {
	return upkeep{packs: packs, cruft: cruft, changed: changed, last: last}.due(now)
}
