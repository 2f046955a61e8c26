package repository

// Fail makes steps that must be whole if a process is killed in the middle of them go wrong before
// fault says nil.
func (s *Store) Fail(fault func(step string) error) { s.fault = fault }

// ParseEnded is parseEnded.
var ParseEnded = parseEnded
