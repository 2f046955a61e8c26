package repository

// Fail makes steps that must be whole if a process is killed in the middle of them go wrong before
// fault says nil.
func (s *Store) Fail(fault func(step string) error) { s.fault = fault }

// ParseEnded is parseEnded.
var ParseEnded = parseEnded

// CreateRefs creates references without git, if that can be done.
func (r *Repo) CreateRefs(names map[string]string) (done bool, err error) {
	var changes []refChange
	for name, id := range names {
		changes = append(changes, refChange{name: name, to: id})
	}
	return r.create(changes)
}
