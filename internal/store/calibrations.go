package store

import (
	"context"
	"database/sql"
	"fmt"

	"memplan/internal/planner"
)

const calibrationColumns = `id, created_at_us, gpu, framework, framework_version, state, document`

// SaveCalibration implements planner.MeasuredStore.
func (s *Store) SaveCalibration(ctx context.Context, c planner.CalibrationRecord, key planner.Key) (string, error) {
	packed, err := s.pack(c.Document)
	if err != nil {
		return "", classify("store: save calibration", "", err)
	}
	ids, err := s.keyed(ctx, key, []string{c.ID}, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO calibrations (`+calibrationColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
			c.ID, micros(c.CreatedAt), text(c.GPU), text(c.Framework.Name), text(c.Framework.Version), c.State, packed)
		return err
	})
	if err != nil {
		return "", classify("store: save calibration", "", err)
	}
	return ids[0], nil
}

// LoadCalibration implements planner.MeasuredStore.
func (s *Store) LoadCalibration(ctx context.Context, id string) (planner.CalibrationRecord, error) {
	c, err := scanCalibration(s.db.QueryRowContext(ctx, `SELECT `+calibrationColumns+` FROM calibrations WHERE id = $1`, text(id)))
	return c, classify("store: load calibration", fmt.Sprintf("no calibration %q is kept here", id), err)
}

// ListCalibrations implements planner.MeasuredStore.
func (s *Store) ListCalibrations(ctx context.Context, q planner.CalibrationQuery) ([]planner.CalibrationRecord, error) {
	var c clauses
	if q.GPU != "" {
		c.add(`gpu = ?`, text(q.GPU))
	}
	if q.State != "" {
		c.add(`state = ?`, q.State)
	}
	rows, err := s.page(ctx, `SELECT `+calibrationColumns+` FROM calibrations`, c, q.After, q.Limit)
	if err != nil {
		return nil, classify("store: list calibrations", "", err)
	}
	defer rows.Close()
	var list []planner.CalibrationRecord
	for rows.Next() {
		x, err := scanCalibration(rows)
		if err != nil {
			return nil, classify("store: list calibrations", "", err)
		}
		list = append(list, x)
	}
	return list, classify("store: list calibrations", "", rows.Err())
}

// SetCalibrationState implements planner.MeasuredStore.
func (s *Store) SetCalibrationState(ctx context.Context, id, state string) error {
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		if state == planner.Active {
			// The one in force goes first: an index holds that there is one.
			_, err := tx.ExecContext(ctx, `UPDATE calibrations SET state = $1 WHERE state = $2 AND id <> $3
				AND (gpu, framework, framework_version) = (SELECT gpu, framework, framework_version FROM calibrations WHERE id = $3)`,
				planner.Retired, planner.Active, text(id))
			if err != nil {
				return err
			}
		}
		res, err := tx.ExecContext(ctx, `UPDATE calibrations SET state = $1 WHERE id = $2`, state, text(id))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 1 {
			return err
		}
		return sql.ErrNoRows
	})
	return classify("store: set calibration state", fmt.Sprintf("no calibration %q is kept here", id), err)
}

func scanCalibration(row interface{ Scan(...any) error }) (planner.CalibrationRecord, error) {
	var c planner.CalibrationRecord
	var created int64
	var packed []byte
	if err := row.Scan(&c.ID, &created, &c.GPU, &c.Framework.Name, &c.Framework.Version, &c.State, &packed); err != nil {
		return planner.CalibrationRecord{}, err
	}
	c.CreatedAt = fromMicros(created)
	var err error
	c.Document, err = unpack(packed)
	return c, err
}
