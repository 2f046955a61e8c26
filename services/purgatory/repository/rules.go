package repository

import (
	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
)

// Rules say which repositories are here: those of the settings, and those that were archived by
// earlier settings. What was archived once is served as long as its announcement is, so that a
// changed list takes nothing away from anybody.
type Rules struct {
	config.Rules
	Store *Store
}

// Keeps reports whether the repository of an announcement is here.
func (r Rules) Keeps(a *nostr.Announcement) bool { return r.Rules.Keeps(a) || r.wasArchived(a) }

// Archives reports whether it is here though its announcement does not list this service.
func (r Rules) Archives(a *nostr.Announcement) bool {
	return r.Rules.Archives(a) || !r.Lists(a) && r.wasArchived(a)
}

func (r Rules) wasArchived(a *nostr.Announcement) bool {
	repo, err := r.Store.Repo(a.Ref)
	return err == nil && repo.IsArchive()
}
