package purgatory

import (
	"tendril.dev/lib/hosting"
	"tendril.dev/lib/nip34"
	"tendril.dev/services/purgatory/repository"
)

// rules say which repositories are here: those of the settings, and those that were archived by
// earlier settings. What was archived once is served as long as its announcement is, so that a
// changed list takes nothing away from anybody.
type rules struct {
	hosting.Rules
	store *repository.Store
}

// Keeps implements dossier.Rules.
func (r rules) Keeps(a *nip34.Announcement) bool { return r.Rules.Keeps(a) || r.wasArchived(a) }

// Archives implements dossier.Rules.
func (r rules) Archives(a *nip34.Announcement) bool {
	return r.Rules.Archives(a) || !r.Lists(a) && r.wasArchived(a)
}

func (r rules) wasArchived(a *nip34.Announcement) bool {
	repo, err := r.store.Repo(a.Ref)
	return err == nil && repo.IsArchive()
}
