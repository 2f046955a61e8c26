package claim

import "tendril.dev/proto"

// Assigned is who of the workers has each of the keys when all know of each other and nothing moves
// any more.
func Assigned(keys []string, names ...string) map[string]string {
	wanted, workers := map[string]bool{}, map[string]proto.Worker{}
	for _, key := range keys {
		wanted[key] = true
	}
	for _, name := range names {
		workers[name] = proto.Worker{Name: name, Working: true}
	}
	return assign(wanted, workers)
}
