package store

import (
	"context"

	"memplan/internal/planner"
)

// HubConfig implements planner.Store.
func (s *Store) HubConfig(ctx context.Context, id string) (planner.HubEntry, error) {
	var config string
	var fetched int64
	err := s.db.QueryRowContext(ctx, `SELECT config, fetched_at_us FROM hub_configs WHERE id = $1`, text(id)).Scan(&config, &fetched)
	if err != nil {
		return planner.HubEntry{}, classify("store: load hub config", "no configuration of that model is kept here", err)
	}
	return planner.HubEntry{Config: []byte(config), FetchedAt: fromMicros(fetched)}, nil
}

// SaveHubConfig implements planner.Store.
func (s *Store) SaveHubConfig(ctx context.Context, id string, e planner.HubEntry) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO hub_configs (id, config, fetched_at_us) VALUES ($1, $2, $3)
		ON CONFLICT (id) DO UPDATE SET config = excluded.config, fetched_at_us = excluded.fetched_at_us`,
		text(id), text(string(e.Config)), micros(e.FetchedAt))
	return classify("store: save hub config", "", err)
}
