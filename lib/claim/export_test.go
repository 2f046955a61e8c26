package claim

// Assigned is who of the workers has each of the keys when all know of each other, none was too
// slow to take what it should have, and nothing moves any more.
func Assigned(keys []string, workers ...string) map[string]string {
	wanted := map[string]bool{}
	for _, key := range keys {
		wanted[key] = true
	}
	return assign(wanted, workers)
}
